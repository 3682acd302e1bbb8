"""Checks that run side by side: in order, and none is waited for without end."""

import threading

import pytest

from adapter.cli.doctor.findings import FAIL, OK, Finding, gather
from adapter.errors import AdapterError


def test_findings_are_in_the_order_of_the_checks() -> None:
    """Whichever ends first; a check may have none or several."""
    second_done = threading.Event()

    def first() -> list[Finding]:
        assert second_done.wait(60)
        return [Finding("a", OK, "1"), Finding("a", OK, "2")]

    def second() -> list[Finding]:
        second_done.set()
        return [Finding("b", OK, "3")]

    assert [row.seen for row in gather({"a": first, "b": second, "c": list})] == ["1", "2", "3"]


def test_a_check_that_hangs_is_a_failed_one() -> None:
    """A dead NFS server answers nothing: the others are shown all the same."""
    never = threading.Event()

    def hangs() -> list[Finding]:
        never.wait()
        return []

    (row,) = gather({"disk": hangs}, limit_s=0.1)
    never.set()
    assert (row.check, row.state, row.seen) == ("disk", FAIL, "no answer within 0.1 s")
    assert row.advice


@pytest.mark.parametrize("error", [AdapterError("meta.tls: ca.crt: No such file"), ValueError("of a bug")])
def test_a_check_that_raises_is_a_failed_one(error: Exception) -> None:
    """With the error's text, after what another check found."""

    def raises() -> list[Finding]:
        raise error

    failed, fine = gather({"bad": raises, "good": lambda: [Finding("good", OK, "")]})
    assert (failed.check, failed.state, fine.state) == ("bad", FAIL, OK)
    assert str(error) in failed.seen
