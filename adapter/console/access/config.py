"""[access]: who may see the console, who may change offsets, and how people show who they are; see docs/console-access.md."""

import ipaddress
import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, Strict, model_validator

from adapter.runtime.settings.addresses import is_loopback
from adapter.runtime.settings.config import FilePath, Section

_HEADER = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
# Of these, a server or a proxy on the way makes something of its own.
_TAKEN = frozenset(
    {"host", "cookie", "origin", "referer", "content-type", "content-length", "connection", "transfer-encoding", "te"}
)


def _header(value: str) -> str:
    if not _HEADER.fullmatch(value) or value in _TAKEN:
        raise ValueError(f"{value!r} is not the name of a header in lower case, such as x-forwarded-user")
    return value


def _networks(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            network = ipaddress.ip_network(value)
        except ValueError:
            raise ValueError(f"{value!r} is not an IP address, nor a network like 10.1.2.0/24") from None
        if network.prefixlen == 0:
            raise ValueError(f"{value!r} is every address: then everybody could name any person in the header")
    return values


def _origins(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not re.fullmatch(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", value):
            raise ValueError(f"{value!r} is not an origin in lower case, such as https://console.example.org")
    return values


class ProxySection(Section):
    """[access.proxy]: a proxy in front that logs people in (OIDC), and says in headers who they are.

    Only the `addresses` are believed; a header from elsewhere is refused. A person with one of `admin_groups` in the groups
    header (separated by commas) is an admin.
    """

    addresses: Annotated[tuple[str, ...], Strict(strict=False), AfterValidator(_networks)] = ()
    user_header: Annotated[str, AfterValidator(_header)] = "x-forwarded-user"
    groups_header: Annotated[str, AfterValidator(_header)] = "x-forwarded-groups"
    admin_groups: Annotated[tuple[str, ...], Strict(strict=False)] = ()

    @model_validator(mode="after")
    def _two_headers(self) -> Self:
        if self.user_header == self.groups_header:
            raise ValueError(f"groups_header: is {self.groups_header!r}, as user_header; they must differ")
        if any(not group.strip() or "," in group for group in self.admin_groups):
            raise ValueError("admin_groups: has an empty name, or one with a comma")
        return self

    @property
    def used(self) -> bool:
        """True if a proxy is trusted."""
        return bool(self.addresses)


class AccessSection(Section):
    """[access]: token files, the trusted proxy, sessions, and whether there are forms that change offsets."""

    changes: bool = False
    view_token_file: FilePath | None = None
    admin_token_file: FilePath | None = None
    adapter_token_file: FilePath | None = None
    session_key_file: FilePath | None = None
    session_minutes: int = Field(default=480, ge=1, le=10_080)
    tls_in_front: bool = False
    origins: Annotated[tuple[str, ...], Strict(strict=False), AfterValidator(_origins)] = ()
    proxy: ProxySection = ProxySection()

    @property
    def by_token(self) -> bool:
        """True if people log in with a token."""
        return bool(self.view_token_file or self.admin_token_file)

    @property
    def open(self) -> bool:
        """True if nobody logs in: everybody who reaches the console may look."""
        return not (self.by_token or self.proxy.used)

    @model_validator(mode="after")
    def _changes_need_an_admin(self) -> Self:
        if self.changes and not self.admin_token_file and not (self.proxy.used and self.proxy.admin_groups):
            raise ValueError(
                "changes = true: nobody could make one: set admin_token_file, or proxy.addresses and proxy.admin_groups"
            )
        return self


def check_access(access: AccessSection, listen: str, *, tls: bool) -> None:
    """Check the settings of both together. Raises ValueError that names the setting."""
    if is_loopback(listen):
        return
    if access.open:
        raise ValueError(
            f"server.listen = {listen!r} is reachable from other machines, and nobody has to log in: set access.admin_token_file "
            "or access.view_token_file, or access.proxy.addresses; or listen on 127.0.0.1"
        )
    if access.proxy.used and not tls:
        raise ValueError(
            f"access.proxy: server.listen = {listen!r} is reachable from other machines, and without TLS anybody on the way "
            "could say who somebody is: add server.tls (with client_ca only the proxy can connect), or listen on 127.0.0.1"
        )
