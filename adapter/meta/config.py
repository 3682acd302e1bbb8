"""Settings of a process that calls a Meta Service."""

from typing import Annotated

from pydantic import AfterValidator, Field, Strict

from adapter.model.names import name_of_part
from adapter.runtime.config import Address, ClientTls, Section, not_empty


class MetaSection(Section):
    """[meta]: cluster, endpoints, deadlines in milliseconds, TLS. config/adapter.toml explains each."""

    cluster: Annotated[str, AfterValidator(name_of_part)] = "default"
    endpoints: Annotated[tuple[Address, ...], Strict(strict=False), AfterValidator(not_empty)] = ("127.0.0.1:9530",)
    timeout_ms: int = Field(default=3_000, ge=10, le=600_000)
    load_timeout_ms: int = Field(default=500, ge=10, le=60_000)
    tls: ClientTls | None = None
