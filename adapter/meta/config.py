"""Settings of a process that calls a Meta Service."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field, Strict

from adapter.meta.labels import DEFAULT_SHARD_NAMES, pattern_of
from adapter.model.names import name_of_part
from adapter.runtime.settings.config import Address, ClientTls, Section, not_empty


def _shard_names(value: str) -> str:
    pattern_of(value)
    return value


def _topic_names(topics: Mapping[str, str]) -> Mapping[str, str]:
    for topic_id, topic in topics.items():
        try:
            name_of_part(topic)
        except ValueError as error:
            raise ValueError(f"{topic_id}: {error}") from error
    return topics


class MetaSection(Section):
    """[meta]: cluster, endpoints, deadlines in milliseconds, TLS; and for RobustMQ. config/adapter.toml explains each."""

    cluster: Annotated[str, AfterValidator(name_of_part)] = "default"
    endpoints: Annotated[tuple[Address, ...], Strict(strict=False), AfterValidator(not_empty)] = ("127.0.0.1:9530",)
    timeout_ms: int = Field(default=3_000, ge=10, le=600_000)
    load_timeout_ms: int = Field(default=500, ge=10, le=60_000)
    tls: ClientTls | None = None
    expires_groups_after_seconds: int = Field(default=604_800, ge=0, le=3_153_600_000)
    shard_names: Annotated[str, AfterValidator(_shard_names)] = DEFAULT_SHARD_NAMES
    topics: Annotated[dict[str, str], AfterValidator(_topic_names)] = Field(default_factory=dict)
