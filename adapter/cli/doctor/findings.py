"""What the doctor finds, and how it looks: every check in a thread of its own, none longer than a time limit."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple

from adapter.errors import AdapterError

State = Literal["ok", "warn", "fail"]
OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"

LIMIT_S = 30.0  # of a check; a disk or file system that hangs would never answer


class Finding(NamedTuple):
    """The outcome of a check: its name, ok, warn or fail, what was seen, and what to do about it (empty: nothing)."""

    check: str
    state: State
    seen: str
    advice: str = ""


Check = Callable[[], Iterable[Finding]]


def gather(checks: Mapping[str, Check], limit_s: float = LIMIT_S) -> list[Finding]:
    """Run the checks side by side; the findings are in the order of the checks. Returns within `limit_s`, a bit more at most.

    A check that raises, or gives no answer in time, is a failed one. Its thread is a daemon: it does not keep the process.
    """
    found: dict[str, list[Finding]] = {}
    threads = {
        name: threading.Thread(target=_run, args=(name, check, found), name=f"doctor.{name}", daemon=True)
        for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    until = time.monotonic() + limit_s
    for thread in threads.values():
        thread.join(max(until - time.monotonic(), 0))
    late = f"no answer within {limit_s:g} s"
    advice = "what it looks at hangs: look at the disk or file system (dmesg), or at the network"
    return [row for name in checks for row in found.get(name, [Finding(name, FAIL, late, advice)])]


def _run(name: str, check: Check, found: dict[str, list[Finding]]) -> None:
    try:
        rows = list(check())
    except AdapterError as error:
        rows = [Finding(name, FAIL, str(error))]
    except Exception as error:  # noqa: BLE001 - the other checks count all the same
        rows = [Finding(name, FAIL, f"the check itself failed: {type(error).__name__}: {error}", "tell the developers")]
    found[name] = rows
