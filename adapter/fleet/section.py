"""The settings of a fleet: which adapters there are, how they are called, and how much is kept of them."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, Field, Strict, model_validator

from adapter.runtime.settings.addresses import is_loopback, split_address
from adapter.runtime.settings.config import ClientTls, FilePath, Section

DNS = "dns:"
UNIX = "unix:"


def _adapter_address(value: str) -> str:
    if value.startswith(UNIX):
        if value == UNIX:
            raise ValueError(f"{value!r} names no path: unix:PATH")
        return value
    try:
        split_address(value.removeprefix(DNS))
    except ValueError:
        raise ValueError(f"{value!r} is not HOST:PORT, unix:PATH or dns:NAME:PORT, with a port from 0 to 65535") from None
    return value


AdapterAddress = Annotated[str, AfterValidator(_adapter_address)]


class FleetSection(Section):
    """The adapters: `HOST:PORT`, `unix:PATH`, or `dns:NAME:PORT` for every address that the name has.

    `token_file` is the adapters' `admin.token_file`; without it only health and lag are asked, and the Unix socket. Times are in
    milliseconds. A group that several adapters have counts once for each in `max_groups`; about 1 KiB of memory is needed for
    each, and what is beyond is counted and not kept.
    """

    adapters: Annotated[tuple[AdapterAddress, ...], Strict(strict=False)] = ()
    token_file: FilePath | None = None
    tls: ClientTls | None = None
    timeout_ms: int = Field(default=1_000, ge=10, le=60_000)
    interval_ms: int = Field(default=1_000, ge=50, le=600_000)
    resolve_ms: int = Field(default=10_000, ge=100, le=3_600_000)
    forget_ms: int = Field(default=300_000, ge=0, le=86_400_000)
    max_groups: int = Field(default=250_000, ge=1, le=10_000_000)
    history_ms: int = Field(default=10_000, ge=100, le=3_600_000)
    history_groups: int = Field(default=20_000, ge=0, le=1_000_000)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        twice = sorted({address for address in self.adapters if self.adapters.count(address) > 1})
        if twice:
            raise ValueError(f"adapters: {twice[0]!r} occurs twice")
        return self

    @model_validator(mode="after")
    def _token_stays_secret(self) -> Self:
        if self.token_file and not self.tls:
            for address in self.adapters:
                if not _is_local(address):
                    raise ValueError(
                        f"adapters: the token of token_file would go to {address!r} in plaintext, for everybody on the way to "
                        "read: add a tls table with ca, or leave token_file out"
                    )
        return self


class Discovered(NamedTuple):
    """An entry of `adapters`, and the addresses that it stands for now."""

    configured: str
    addresses: Sequence[str]


def _is_local(address: str) -> bool:
    return address.startswith(UNIX) or is_loopback(address.removeprefix(DNS))
