"""The bulk calls: failover, retries with a limit, and errors that say what to do."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from adapter.errors import ConfigError, MetaUnavailableError, RefusedError
from adapter.meta.blocking import MetaCalls
from adapter.meta.config import MetaSection
from adapter.model.codec import encode_key, encode_record
from adapter.runtime.settings.config import ClientTls
from adapter.testing.processes import free_port
from tests.integration.certificates import Authority
from tests.pipeline.bulk_meta import BulkMeta, answer_lost, never_came, serving
from tests.unit.helpers import key, packed_rows, record

RECORDS = [encode_record(record(5))]
ROWS = packed_rows("default", [encode_key(key())], RECORDS)


def calls_to(*endpoints: str, retry_s: float = 20.0, timeout_ms: int = 20_000, tls: ClientTls | None = None) -> MetaCalls:
    """Calls with long deadlines, so that a busy machine fails no test."""
    return MetaCalls(MetaSection(endpoints=endpoints, timeout_ms=timeout_ms, tls=tls), retry_s)


def test_a_dead_endpoint_is_passed_over_and_the_living_one_kept() -> None:
    """The second call does not try the dead endpoint again."""
    meta = BulkMeta()
    with serving(meta) as address, closing(calls_to(f"127.0.0.1:{free_port()}", address, retry_s=0.0)) as calls:
        assert calls.merge(ROWS).applied == 1
        assert calls._current == 1
        assert calls.merge(ROWS).applied == 1
        assert calls.scan("", "", 10, b"", b"").packed.records == RECORDS[0]


@pytest.mark.parametrize("fault", [answer_lost, never_came])
def test_a_merge_without_an_answer_is_sent_again(fault: Any) -> None:
    """Whether or not the first one was applied, the rows are stored at the end."""
    meta = BulkMeta()
    meta.faults.extend([fault, fault])
    with serving(meta) as address, closing(calls_to(address)) as calls:
        assert calls.merge(ROWS).applied == 1
    assert meta.merges == [1, 1, 1]
    assert meta.records == {key(): record(5)}


def test_when_nobody_answers_every_endpoint_is_named() -> None:
    """With what was tried, for how long, and what to check."""
    dead = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with (
        closing(calls_to(*dead, retry_s=0.2)) as calls,
        pytest.raises(MetaUnavailableError, match=r"tried for 0\.2 s.*Is it running") as caught,
    ):
        calls.split("", "", 4)
    assert all(f"{endpoint}: UNAVAILABLE" in str(caught.value) for endpoint in dead)


def test_a_call_has_a_deadline() -> None:
    """A server that hangs counts as one that does not answer."""
    meta, gate = BulkMeta(), threading.Event()

    def hang(_merge: Callable[[], None], _context: grpc.ServicerContext) -> None:
        gate.wait(20.0)

    meta.faults.append(hang)
    with serving(meta) as address, closing(calls_to(address, retry_s=0.0, timeout_ms=100)) as calls:
        with pytest.raises(MetaUnavailableError, match=f"{address}: no answer within 0.1 s"):
            calls.merge(ROWS)
        gate.set()


def test_a_refusal_is_not_repeated() -> None:
    """The same request would be refused again."""
    meta = BulkMeta()

    def refuse(_merge: Callable[[], None], context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "cluster_name is empty")

    meta.faults.append(refuse)
    with (
        serving(meta) as address,
        closing(calls_to(address)) as calls,
        pytest.raises(RefusedError, match="cluster_name is empty"),
    ):
        calls.merge(ROWS)
    assert meta.merges == [1]


def test_a_server_of_another_kind_is_told_from_one_that_is_away() -> None:
    """As RobustMQ's own server, or an older version."""
    with (
        serving(None) as address,
        closing(calls_to(address)) as calls,
        pytest.raises(RefusedError, match="it is RobustMQ's Meta Service, an older one of offset-adapter"),
    ):
        calls.scan("", "", 10, b"", b"")


def test_a_server_that_does_not_answer_in_columns_is_refused() -> None:
    """An older version would answer by rows, of which a reader would see none."""
    meta = BulkMeta()
    meta.records = {key(): record(5)}
    meta.knows_columns = False
    with (
        serving(meta) as address,
        closing(calls_to(address)) as calls,
        pytest.raises(RefusedError, match="upgrade it first"),
    ):
        calls.scan("", "", 10, b"", b"")


def test_a_server_that_does_not_take_columns_is_refused() -> None:
    """An older version would see no rows, and merge none of them."""
    meta = BulkMeta()
    meta.knows_columns = False
    with serving(meta) as address, closing(calls_to(address)) as calls, pytest.raises(RefusedError, match="upgrade it first"):
        calls.merge(ROWS)


def test_tls_both_ways(tmp_path: Path) -> None:
    """The server is verified and asks for a certificate; the error for an unreadable file names it."""
    authority = Authority(tmp_path)
    server, client = authority.issue("server"), authority.issue("client")
    credentials = grpc.ssl_server_credentials(
        [(server.key.read_bytes(), server.cert.read_bytes())], authority.cert.read_bytes(), require_client_auth=True
    )
    whole = ClientTls(ca=authority.cert, cert=client.cert, key=client.key)
    with serving(BulkMeta(), credentials) as address:
        with closing(calls_to(address, tls=whole)) as calls:
            assert calls.merge(ROWS).applied == 1
        for tls in (None, ClientTls(ca=authority.cert)):
            with closing(calls_to(address, retry_s=0.0, tls=tls)) as calls, pytest.raises(MetaUnavailableError, match=address):
                calls.merge(ROWS)
    with pytest.raises(ConfigError, match=r"gone\.crt: No such file"):
        calls_to("127.0.0.1:1", tls=ClientTls(ca=tmp_path / "gone.crt"))
