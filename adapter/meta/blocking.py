"""Synchronous bulk calls of the Meta Service for Spark's workers, with failover, deadlines and retries.

Every call is safe to repeat: split and scan only read, and merging a record twice changes nothing.
"""

from typing import Any, Protocol

import grpc
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from adapter.errors import MetaUnavailableError, RefusedError, UnknownCallError
from adapter.meta.config import MetaSection
from adapter.meta.errors import DeniedError, translated
from adapter.rpc import meta_grpc, meta_pb
from adapter.runtime.channels import open_blocking_channel

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 2.0
DEFAULT_RETRY_S = 30.0

_CHANNEL_OPTIONS = (
    # The largest page has 20,000 records of 5 KB.
    ("grpc.max_receive_message_length", 128 * 2**20),
    ("grpc.max_send_message_length", 64 * 2**20),
    # Reconnect soon: a channel in a long backoff would fail the next attempts without trying.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

_BACKOFF = wait_random_exponential(multiplier=FIRST_PAUSE_S, max=MAX_PAUSE_S)


class _Method(Protocol):
    def __call__(self, request: Any, *, timeout: float) -> Any: ...  # noqa: ANN401 - of the stub


class MetaCalls:
    """Calls one endpoint until it fails, then the next one. Thread-safe. Has to be closed.

    Every method raises MetaUnavailableError if no endpoint answered for `retry_s` seconds (whether the last request was applied
    is then unknown), and RefusedError if one refused the request.
    """

    def __init__(self, section: MetaSection, retry_s: float = DEFAULT_RETRY_S) -> None:
        """Connects on first use. Raises ConfigError if a TLS file cannot be read."""
        self._section = section
        self._timeout_s = section.timeout_ms / 1000
        self._retry_s = retry_s
        self._channels = [open_blocking_channel(name, section.tls, _CHANNEL_OPTIONS) for name in section.endpoints]
        self._stubs = [meta_grpc.MetaServiceServiceStub(channel) for channel in self._channels]
        self._current = 0

    def close(self) -> None:
        """Close the channels. Calls in progress fail."""
        for channel in self._channels:
            channel.close()

    def split(self, namespace: str, group: str, parts: int) -> meta_pb.SplitOffsetDataReply:
        """Return the tokens at which `parts` readers divide a listing, and its number of records."""
        request = meta_pb.SplitOffsetDataRequest(
            cluster_name=self._section.cluster, namespace=namespace, group=group, parts=parts
        )
        reply: meta_pb.SplitOffsetDataReply = self._call("SplitOffsetData", request)
        return reply

    def scan(self, namespace: str, group: str, size: int, after: bytes, until: bytes) -> meta_pb.ScanOffsetDataReply:
        """Read a page of at most `size` records after the token `after`, up to and including the token `until`, as columns.

        Raises RefusedError too if the server cannot answer in columns.
        """
        request = meta_pb.ScanOffsetDataRequest(
            cluster_name=self._section.cluster,
            namespace=namespace,
            group=group,
            page_size=size,
            page_token=after,
            until_token=until,
            as_packed=True,
        )
        reply: meta_pb.ScanOffsetDataReply = self._call("ScanOffsetData", request)
        if reply.keys:
            raise RefusedError("ScanOffsetData: this Meta Service is an older one that does not know as_packed: upgrade it first")
        return reply

    def merge(self, rows: meta_pb.PackedRows, *, tell: bool = False) -> meta_pb.MergeOffsetDataReply:
        """Merge rows, whose keys begin with the cluster. They are durable when this returns.

        `tell`: adapters are told of the groups that this changes. Raises RefusedError too if the server cannot take columns.
        """
        request = meta_pb.MergeOffsetDataRequest(cluster_name=self._section.cluster, packed=rows, tell=tell)
        reply: meta_pb.MergeOffsetDataReply = self._call("MergeOffsetData", request)
        if rows.keys and not reply.applied + reply.superseded + len(reply.rejected):
            raise RefusedError("MergeOffsetData: this Meta Service is an older one that does not know packed: upgrade it first")
        return reply

    def _call(self, method: str, request: Any) -> Any:  # noqa: ANN401 - messages
        attempts = Retrying(
            retry=retry_if_exception_type(MetaUnavailableError),
            stop=stop_after_delay(self._retry_s),
            wait=_pause,
            before_sleep=lambda state: _log_retry(method, state),
            reraise=True,
        )
        try:
            return attempts(self._once, method, request)
        except MetaUnavailableError as error:
            raise MetaUnavailableError(
                f"{method}: no Meta Service answered, tried for {self._retry_s:g} s: {error}. "
                "Is it running, and are the endpoints right (host:port, comma separated; TLS on both sides or on none)?"
            ) from error

    def _once(self, method: str, request: Any) -> Any:  # noqa: ANN401 - messages
        """Try the current endpoint, then each other one once. The one that answers becomes current."""
        problems: list[MetaUnavailableError | DeniedError | UnknownCallError] = []
        first = self._current
        for at in range(first, first + len(self._stubs)):
            index = at % len(self._stubs)
            call: _Method = getattr(self._stubs[index], method)
            try:
                reply = call(request, timeout=self._timeout_s)
            except grpc.RpcError as error:
                found = translated(self._section.endpoints[index], error, self._timeout_s)
                if not isinstance(found, MetaUnavailableError | DeniedError | UnknownCallError):
                    raise found from error
                problems.append(found)
            else:
                self._current = index
                return reply
        tried_again = [problem for problem in problems if isinstance(problem, MetaUnavailableError)]
        if not tried_again:
            raise problems[0]
        asked_s = min((problem.retry_after_s for problem in tried_again if problem.retry_after_s), default=0.0)
        raise MetaUnavailableError("; ".join(map(str, problems)), retry_after_s=asked_s)


def _pause(state: RetryCallState) -> float:
    """Seconds until the next attempt: exponential backoff with jitter, and at least what an overloaded server asked for."""
    error = state.outcome.exception() if state.outcome else None
    return max(_BACKOFF(state), error.retry_after_s if isinstance(error, MetaUnavailableError) else 0.0)


def _log_retry(method: str, state: RetryCallState) -> None:
    import structlog  # noqa: PLC0415 - takes 90 ms to import, in each process that Spark starts for a step of a query

    error = state.outcome.exception() if state.outcome else None
    pause_s = state.next_action.sleep if state.next_action else 0.0
    log = structlog.get_logger(__name__)
    log.warning("retry", what=method, attempt=state.attempt_number, pause_s=round(pause_s, 3), error=str(error))
