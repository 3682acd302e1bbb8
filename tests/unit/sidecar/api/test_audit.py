"""The audit log of calls of OffsetAdmin: its content, and that a caller cannot forge it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from adapter.errors import ContendedError, InvalidInputError
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.rpc import offsets_pb
from adapter.runtime.serving.statuses import Context
from adapter.runtime.telemetry.logs import TEXT_MAX, harmless
from adapter.sidecar.api import refusals
from adapter.sidecar.api.access import CLAIM_MAX, ITEMS_MAX, ROWS_MAX, Access, audited
from adapter.sidecar.engine.reset_plans import OffsetChange
from adapter.testing.waiting import eventually
from tests.unit.calls import TCP, TOKEN, AbortedError, context

MOVED = offsets_pb.ChangeReply.Row(
    namespace="n",
    group="g",
    shard="s",
    before=offsets_pb.Position(epoch=1, offset=7),
    after=offsets_pb.Position(epoch=2, offset=3),
)


class Admin:
    """Methods like those of OffsetAdmin."""

    def __init__(self, access: Access | None = None) -> None:
        self._access = access or Access()
        self.reply = offsets_pb.ChangeReply(rows=[MOVED])
        self.failure: BaseException | None = None
        self.called = 0

    @audited
    async def Reset(self, request: offsets_pb.ResetOffsetsRequest, context: Context) -> offsets_pb.ChangeReply:  # noqa: ARG002
        """Reply to a reset, or fail."""
        self.called += 1
        if self.failure:
            raise self.failure
        return self.reply

    @audited
    async def Export(
        self,
        request: offsets_pb.ExportOffsetsRequest,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> AsyncIterator[offsets_pb.ExportOffsetsReply]:
        for _ in range(3):
            self.called += 1
            yield offsets_pb.ExportOffsetsReply()
            if self.failure:
                raise self.failure


def reset(*, execute: bool = True, **fields: Any) -> offsets_pb.ResetOffsetsRequest:
    """A reset request."""
    return offsets_pb.ResetOffsetsRequest(group="g", execute=execute, **fields)


async def _audit(admin: Admin, request: offsets_pb.ResetOffsetsRequest, call: Context) -> dict[str, Any]:
    """The one audit event of a call, however the call ends."""
    with capture_logs() as lines:
        await asyncio.gather(admin.Reset(request, call), return_exceptions=True)
    (line,) = [dict(line) for line in lines if line["event"] == "admin.call"]
    return line


async def test_a_change_is_told_with_before_and_after() -> None:
    """The event has caller, address, method, and each shard. A dry run is marked."""
    row = {"key": ["n", "g", "s"], "before": {"epoch": 1, "offset": 7}, "after": {"epoch": 2, "offset": 3}}
    call = context(TCP, authorization=f"Bearer {TOKEN}", user="ann")
    line = await _audit(Admin(Access(TOKEN)), reset(to_offset=3), call)
    assert line == {
        "event": "admin.call",
        "log_level": "info",
        "who": "token",
        "claimed": "ann",
        "peer": TCP,
        "method": "Reset",
        "arguments": {"group": "g", "to_offset": 3, "execute": True},
        "dry_run": False,
        "outcome": "OK",
        "rows": [row],
    }
    assert (await _audit(Admin(), reset(execute=False), context()))["dry_run"] is True


async def test_what_was_absent_or_deleted_is_told_as_such() -> None:
    """An absent offset is None, and a tombstone is not a live offset at 0."""
    gone = offsets_pb.Position(epoch=2**32, deleted=True)
    admin = Admin()
    admin.reply = offsets_pb.ChangeReply(rows=[offsets_pb.ChangeReply.Row(namespace="n", group="g", shard="s", after=gone)])
    (row,) = (await _audit(admin, reset(), context()))["rows"]
    assert (row["before"], row["after"]) == (None, {"epoch": 2**32, "offset": 0, "deleted": True})


async def test_many_rows_go_into_several_lines() -> None:
    """Log collectors cut long lines; each line repeats the other fields, and the order is kept."""
    admin = Admin()
    shards = [f"{at}" for at in range(2 * ROWS_MAX + 1)]
    admin.reply = offsets_pb.ChangeReply(rows=[offsets_pb.ChangeReply.Row(shard=shard) for shard in shards])
    with capture_logs() as lines:
        await admin.Reset(reset(), context())
    assert [row["key"][2] for line in lines for row in line["rows"]] == shards
    assert [line["part"] for line in lines] == ["1 of 3", "2 of 3", "3 of 3"]
    assert {(line["who"], line["method"], line["outcome"]) for line in lines} == {(Access().admit(context()), "Reset", "OK")}


async def test_a_refused_call_is_told_and_does_nothing() -> None:
    """The event says what was tried; the caller is unknown."""
    admin = Admin()
    line = await _audit(admin, reset(), context(TCP))
    assert (line["who"], line["outcome"], line["arguments"]["group"]) == ("unknown", "PERMISSION_DENIED", "g")
    assert line["reason"].startswith("OffsetAdmin is off on TCP")
    assert admin.called == 0
    with pytest.raises(AbortedError, match="PERMISSION_DENIED"):
        await admin.Reset(reset(), context(TCP))


async def test_very_many_refused_calls_are_told_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anonymous callers do not decide how much is logged. Each call of who is admitted is told."""
    monkeypatch.setattr(refusals, "INTERVAL_S", 0.05)
    admin = Admin(Access(TOKEN))
    more = 20
    with capture_logs() as lines:
        for _ in range(refusals.LINES + more):
            with pytest.raises(AbortedError, match="UNAUTHENTICATED"):
                await admin.Reset(reset(), context(TCP))
        await admin.Reset(reset(), context(TCP, authorization=f"Bearer {TOKEN}"))
        await eventually(lambda: lines[-1]["event"] == "admin.refused")
        with pytest.raises(AbortedError, match="UNAUTHENTICATED"):
            await admin.Reset(reset(), context(TCP))
    told = [line.get("outcome") for line in lines]
    assert told == [*["UNAUTHENTICATED"] * refusals.LINES, "OK", None, "UNAUTHENTICATED"]
    counted = lines[-2]
    assert (counted["calls"], counted["methods"]) == (more, {"Reset": more})
    assert counted["peers"] == {TCP.rpartition(":")[0]: more}


async def test_a_failed_call_is_told_with_its_status() -> None:
    """An AdapterError with its status and text; any other exception as UNKNOWN, with a trace in the log."""
    admin = Admin()
    admin.failure = InvalidInputError("group: is empty")
    line = await _audit(admin, reset(), context())
    assert (line["outcome"], line["reason"]) == ("INVALID_ARGUMENT", "group: is empty")
    assert "rows" not in line
    with pytest.raises(AbortedError, match="INVALID_ARGUMENT"):
        await admin.Reset(reset(), context())
    admin.failure = RuntimeError("a bug")
    with capture_logs() as lines, pytest.raises(RuntimeError, match="a bug"):
        await admin.Reset(reset(), context())
    assert [(line["event"], line.get("outcome")) for line in lines] == [("rpc.failed", None), ("admin.call", "UNKNOWN")]


async def test_a_cancelled_call_is_told() -> None:
    """The client went away or its deadline passed; what it asked for may have been done."""
    admin = Admin()
    admin.failure = asyncio.CancelledError()
    with capture_logs() as lines, pytest.raises(asyncio.CancelledError):
        await admin.Reset(reset(), context())
    assert [line["outcome"] for line in lines] == ["CANCELLED"]


async def _exported(admin: Admin, call: Context) -> int:
    return len([reply async for reply in admin.Export(offsets_pb.ExportOffsetsRequest(), call)])


async def test_a_stream_is_told_once() -> None:
    """When it ends, or when it is refused before its first reply."""
    admin = Admin()
    with capture_logs() as lines:
        assert await _exported(admin, context()) == 3
    assert [(line["method"], line["outcome"]) for line in lines] == [("Export", "OK")]
    with capture_logs() as lines, pytest.raises(AbortedError, match="PERMISSION_DENIED"):
        await _exported(admin, context(TCP))
    assert [(line["method"], line["outcome"]) for line in lines] == [("Export", "PERMISSION_DENIED")]
    assert admin.called == 3


async def test_a_stream_that_fails_or_is_left_is_told() -> None:
    """The event is logged even if some replies were sent already."""
    admin = Admin()
    admin.failure = InvalidInputError("no")
    with capture_logs() as lines, pytest.raises(AbortedError, match="INVALID_ARGUMENT"):
        await _exported(admin, context())
    assert [line["outcome"] for line in lines] == ["INVALID_ARGUMENT"]
    replies = cast("Any", Admin().Export(offsets_pb.ExportOffsetsRequest(), context()))
    with capture_logs() as lines:
        await anext(replies)
        await replies.aclose()
    assert [line["outcome"] for line in lines] == ["CANCELLED"]


async def test_a_claimed_name_cannot_forge_a_line() -> None:
    """Control characters, line separators and direction marks are replaced, and a long name is cut."""
    evil = "ann\n2026 [info] admin.call who=root\x1b[2J\u2028\u202e" + "x" * 100
    line = await _audit(Admin(), reset(), context(user=evil))
    assert line["claimed"].isprintable()
    assert len(line["claimed"]) == CLAIM_MAX + len("...")
    assert line["claimed"].startswith("ann\ufffd2026")
    assert (await _audit(Admin(), reset(), context()))["claimed"] == ""


async def test_arguments_are_short_and_harmless() -> None:
    """Long lists and texts are cut; a list that is cut says how many items are left out."""
    shards = ["a\nb", "c" * 300, *map(str, range(10))]
    shown = (await _audit(Admin(), reset(shards=shards), context()))["arguments"]["shards"]
    assert shown == ["a\ufffdb", "c" * TEXT_MAX + "...", "0", "1", "2", f"and {len(shards) - ITEMS_MAX} more"]
    targets = offsets_pb.ResetOffsetsRequest.Targets(targets=[offsets_pb.ResetOffsetsRequest.Target(shard="s", offset=4)])
    line = await _audit(Admin(), reset(to_targets=targets), context())
    assert line["arguments"]["to_targets"] == {"targets": [{"shard": "s", "offset": 4}]}


@pytest.mark.parametrize("text", ["", "x", "ä b", "x" * 5])
def test_a_harmless_text_stays_as_it_is(text: str) -> None:
    """Letters of any script, and spaces, are not replaced."""
    assert harmless(text, 5) == text


async def test_a_change_that_fails_half_way_tells_what_it_attempted() -> None:
    """Some shards have changed then, and only the log has their former offsets."""
    admin = Admin()
    admin.failure = ContendedError("read back and found with another value")
    admin.failure.attempted = [OffsetChange(OffsetKey("n", "g", "s"), OffsetRecord(1, 7), OffsetRecord(2, 3))]
    line = await _audit(admin, reset(), context())
    assert (line["outcome"], "rows" in line) == ("ABORTED", False)
    assert line["attempted"] == [
        {"key": ["n", "g", "s"], "before": {"epoch": 1, "offset": 7}, "after": {"epoch": 2, "offset": 3}}
    ]
