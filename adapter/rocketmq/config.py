"""The section `[rocketmq]` of the sidecar's settings; config/adapter.toml explains each of them."""

from typing import Annotated

from pydantic import AfterValidator, Field

from adapter.errors import ConfigError
from adapter.model.names import name_of_part
from adapter.model.records import DEFAULT_NAMESPACE
from adapter.rocketmq.signing import Signer
from adapter.runtime.settings.config import ClientTls, FilePath, OptionalAddress, Section
from adapter.runtime.settings.secret_files import read_secret


class RocketmqTls(ClientTls):
    """The CA that verifies the broker, our own certificate for mTLS, and the name in the broker's certificate."""

    server_name: str = ""


class RocketmqAcl(Section):
    """An account of the broker's ACL, as an administrator: offsets of all groups are read and written."""

    access_key: str = Field(min_length=1)
    secret_key_file: FilePath


class RocketmqSection(Section):
    """The stock broker whose offsets the bridge keeps; without an address there is no bridge."""

    broker: OptionalAddress = ""
    namespace: Annotated[str, AfterValidator(name_of_part)] = DEFAULT_NAMESPACE
    name_in_shards: bool = True
    poll_ms: int = Field(default=100, ge=10, le=60_000)
    timeout_ms: int = Field(default=3_000, ge=10, le=600_000)
    tls: RocketmqTls | None = None
    acl: RocketmqAcl | None = None


def signer_of(section: RocketmqSection) -> Signer | None:
    """The account that signs requests; None without an ACL. Raises ConfigError for an unusable file."""
    if section.acl is None:
        return None
    secret = read_secret(section.acl.secret_key_file, "rocketmq.acl.secret_key_file")
    if not secret:
        raise ConfigError(f"rocketmq.acl.secret_key_file: {section.acl.secret_key_file}: is empty")
    return Signer(section.acl.access_key, secret)
