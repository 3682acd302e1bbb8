"""Which callers may use OffsetAdmin and StoreBackup, and the audit log of their calls.

The Unix socket is open to its owner, and to root. Where its mode lets others open it, the kernel tells who calls: others count as
callers over TCP. TCP is open to callers with the token; without a token file, to callers with a certificate (mTLS); else all are
refused. Every call, also a refused one, is an event `admin.call` that no log level hides; of those that only tell the state
(READS), which a console asks each second, only one that is refused or fails. Of very many refused ones the number is logged
(`refusals`). A token is never logged.
"""

import hmac
import inspect
import os
import pwd
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import wraps
from typing import Any, Protocol, TypeVar, cast, overload

import structlog
from google.protobuf.message import Message

from adapter.client.client import USER_KEY
from adapter.errors import AccessDeniedError, AdapterError, UnauthenticatedError
from adapter.rpc import offsets_pb
from adapter.runtime.serving.http2 import call as http2
from adapter.runtime.serving.statuses import Context, status_of, text_of, trailing_of
from adapter.runtime.settings.live import NOTHING_NEW, Prepared
from adapter.runtime.settings.secret_files import read_token
from adapter.runtime.slices import others
from adapter.runtime.telemetry import logs
from adapter.runtime.telemetry.logs import TEXT_MAX, harmless
from adapter.sidecar.api.refusals import Refusals
from adapter.sidecar.api.replies import change_row
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.engine.history import Caller, asked_by
from adapter.sidecar.engine.reset_plans import OffsetChange

log = structlog.get_logger(__name__)
audit = logs.audit()

UNKNOWN = "unknown"  # a caller that is not admitted
CLAIM_MAX = 64  # characters
READS = frozenset({"Status", "ListGroups", "DescribeGroup", "DescribeGroups", "ListChanges"})  # logged only if they fail
ITEMS_MAX = 5  # of a list in a request
ROWS_MAX = 100  # per line: collectors cut long ones

_TO_THE_SOCKET = "or call it on the adapter's Unix socket, as the user that runs the adapter (--address unix:PATH)"


class Access:
    """Decides which callers are admitted, and writes the audit log."""

    def __init__(self, token: str = "", *, mtls: bool = False, private: bool = True) -> None:
        self._token = token.encode()
        self._mtls = mtls
        self._private = private  # whether only its owner can open the Unix socket
        self._owner = f"unix:{_user_of(os.geteuid())}"
        self._refusals = Refusals()

    @classmethod
    def of(cls, config: AdapterConfig) -> "Access":
        """As the settings say. Raises ConfigError for a token file that cannot be used."""
        tls = config.server.tls
        return cls(
            _token_of(config),
            mtls=tls is not None and tls.client_ca is not None,
            private=not config.server.socket_mode & (stat.S_IRWXG | stat.S_IRWXO),
        )

    def prepare(self, config: AdapterConfig) -> Prepared:
        """Read the token again. Raises ConfigError. A call that was admitted goes on."""
        token = _token_of(config).encode()
        if token == self._token:
            return NOTHING_NEW

        def apply() -> None:
            self._token = token

        return Prepared(apply, ["admin.token_file"])

    def admit(self, context: Context) -> str:
        """Who calls, as far as it is verified. Raises AccessDeniedError or UnauthenticatedError."""
        if context.peer().startswith("unix:"):
            if self._private:
                return self._owner
            uid = cast("http2.Call", context).peer_uid()
            if uid is not None and uid in {0, os.geteuid()}:
                return f"unix:{_user_of(uid)}"
            if not self._token:
                raise AccessDeniedError(
                    "OffsetAdmin is only for the user that runs the adapter: the Unix socket is open to others as well "
                    "(server.unix_socket_mode), who need a token (admin.token_file). Commits, reads, lists and watches need none"
                )
        certificate = _certificate(context) if self._mtls else ""
        if self._token:
            self._check_token(context)
            return f"token, {certificate}" if certificate else "token"
        if not self._mtls:
            raise AccessDeniedError(
                "OffsetAdmin is off on TCP: set admin.token_file, or server.tls.client_ca, in the adapter's settings; "
                + _TO_THE_SOCKET
            )
        if not certificate:
            raise UnauthenticatedError(f"no client certificate was shown: show one, {_TO_THE_SOCKET}")
        return certificate

    @asynccontextmanager
    async def auditing(self, method: str, request: Message, context: Context) -> AsyncIterator["Call"]:
        """Admit a call or abort it, and log its result. Its AdapterErrors become statuses."""
        call = Call(method, request, context)
        try:
            call.admitted(self.admit(context))
            yield call
        except AdapterError as error:
            call.attempted(error)
            if call.is_admitted or self._refusals.take(method, context.peer()):
                await call.write(status_of(error).name, str(error))
            await context.abort(status_of(error), text_of(error), trailing_of(error))
        except Exception as error:
            log.exception("rpc.failed", method=method)
            await call.write("UNKNOWN", type(error).__name__)
            raise
        except BaseException:  # the client has gone, or the adapter stops
            call.write_at_once("CANCELLED")
            raise
        if method not in READS:
            await call.write("OK")

    def _check_token(self, context: Context) -> None:
        scheme, _, shown = _metadata(context, "authorization").partition(" ")
        if scheme.lower() != "bearer":
            raise UnauthenticatedError(f"no token: send `authorization: Bearer TOKEN` (--token-file), {_TO_THE_SOCKET}")
        if not hmac.compare_digest(shown.strip().encode(), self._token):
            raise UnauthenticatedError("wrong token: it is not the one in the adapter's admin.token_file")


class Call:
    """The fields of the audit log for one call."""

    def __init__(self, method: str, request: Message, context: Context) -> None:
        self.who = UNKNOWN
        self._rows: Sequence[offsets_pb.ChangeReply.Row] = ()
        self._attempted: Sequence[OffsetChange] = ()
        self._fields: dict[str, Any] = {
            "claimed": harmless(_metadata(context, USER_KEY), CLAIM_MAX),
            "peer": context.peer(),
            "method": method,
            "arguments": _short(request),
        }
        if "execute" in request.DESCRIPTOR.fields_by_name:
            self._fields["dry_run"] = not getattr(request, "execute")  # noqa: B009 - some requests have it

    @property
    def is_admitted(self) -> bool:
        """False before the caller is known, and for one that is refused."""
        return self.who != UNKNOWN

    @property
    def caller(self) -> Caller:
        """Who calls, for the history of changes."""
        return Caller(self.who, self._fields["claimed"], self._fields["peer"])

    def admitted(self, who: str) -> None:
        """Keep the identity of the caller, as far as it is verified."""
        self.who = who

    def note(self, reply: object) -> None:
        """Record the rows of a change that was executed."""
        if isinstance(reply, offsets_pb.ChangeReply) and not self._fields.get("dry_run"):
            self._rows = reply.rows

    def attempted(self, error: AdapterError) -> None:
        """Record what a failed change was to do: each shard is at `before` or at `after`."""
        self._attempted = cast("Sequence[OffsetChange]", error.attempted)

    async def write(self, outcome: str, reason: str = "") -> None:
        """Log the event; many rows in several parts, between which the event loop runs other tasks."""
        for part in self._events(outcome, reason):
            audit.info("admin.call", **part)
            if "part" in part:
                await others()

    def write_at_once(self, outcome: str) -> None:
        """Log the event of a call that is being cancelled, without an await."""
        for part in self._events(outcome):
            audit.info("admin.call", **part)

    def _events(self, outcome: str, reason: str = "") -> Iterator[dict[str, Any]]:
        fields = {"who": self.who, **self._fields, "outcome": outcome}
        if reason:
            fields["reason"] = harmless(reason, 2 * TEXT_MAX)
        count = len(self._rows) or len(self._attempted)
        for at in range(0, max(count, 1), ROWS_MAX):
            more: dict[str, Any] = {"part": f"{at // ROWS_MAX + 1} of {-(-count // ROWS_MAX)}"} if count > ROWS_MAX else {}
            if rows := self._rows[at : at + ROWS_MAX]:
                more["rows"] = [_row(row) for row in rows]
            elif changes := self._attempted[at : at + ROWS_MAX]:
                more["attempted"] = [_row(change_row(change)) for change in changes]
            yield fields | more


class _Guarded(Protocol):
    _access: Access


S = TypeVar("S", bound=_Guarded)
Q = TypeVar("Q", bound=Message)
R = TypeVar("R")


@overload
def audited(method: Callable[[S, Q, Context], Awaitable[R]]) -> Callable[[S, Q, Context], Awaitable[R]]: ...
@overload
def audited(method: Callable[[S, Q, Context], AsyncIterator[R]]) -> Callable[[S, Q, Context], AsyncIterator[R]]: ...
def audited(method: Callable[[S, Q, Context], Any]) -> Callable[[S, Q, Context], Any]:
    """Wrap a method of these services, unary or an async generator, with `self._access`. Replaces `statuses.answering`."""

    @wraps(method)
    async def answer(self: S, request: Q, context: Context) -> object:
        async with self._access.auditing(method.__name__, request, context) as call:
            with asked_by(call.caller):
                reply: object = await method(self, request, context)
            call.note(reply)
            return reply

    @wraps(method)
    async def stream(self: S, request: Q, context: Context) -> AsyncIterator[object]:
        async with self._access.auditing(method.__name__, request, context), aclosing(method(self, request, context)) as replies:
            async for reply in replies:
                yield reply

    return stream if inspect.isasyncgenfunction(method) else answer


def _token_of(config: AdapterConfig) -> str:
    """The token; empty without a file. Raises ConfigError."""
    path = config.admin.token_file
    return read_token(path, "admin.token_file") if path else ""


def _metadata(context: Context, name: str) -> str:
    return next((str(value) for key, value in context.invocation_metadata() or () if key == name), "")


def _certificate(context: Context) -> str:
    """Subject and alternative names of the client's certificate; empty when there is none."""
    shown = context.auth_context()
    names = [*shown.get("x509_subject", ()), *shown.get("x509_subject_alternative_name", ())]
    return harmless(f"certificate:{' '.join(name.decode(errors='replace') for name in names)}") if names else ""


def _user_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's user need not be in its passwd
        return str(uid)


def _short(message: Message) -> dict[str, Any]:
    return {field.name: _shown(value) for field, value in message.ListFields()}


def _shown(value: Any) -> Any:  # noqa: ANN401 - any value of a protobuf field
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, Message):
        return _short(value)
    if isinstance(value, (bool, int, float)):
        return value
    first = [_shown(item) for item in value[:ITEMS_MAX]]
    return first if len(value) <= ITEMS_MAX else [*first, f"and {len(value) - ITEMS_MAX:,} more"]


def _row(row: offsets_pb.ChangeReply.Row) -> dict[str, Any]:
    return {
        "key": [row.namespace, row.group, row.shard],
        "before": _position(row.before) if row.HasField("before") else None,
        "after": _position(row.after) if row.HasField("after") else None,
    }


def _position(position: offsets_pb.Position) -> dict[str, Any]:
    where: dict[str, Any] = {"epoch": position.epoch, "offset": position.offset}
    return {**where, "deleted": True} if position.deleted else where
