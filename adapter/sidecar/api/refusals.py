"""How many of the refused calls of OffsetAdmin get a line each in the audit log; the others are counted in one.

Whoever reaches the port can be refused as often as they like, and must not decide how much is logged.
"""

import asyncio
from collections import Counter

from adapter.runtime.telemetry import logs

audit = logs.audit()

INTERVAL_S = 60.0
LINES = 100  # in an interval, with a line each
NAMED_MAX = 5  # hosts in the line that counts the others
HOSTS_MAX = 1_000  # that are told apart


class Refusals:
    """Counts the refused calls from the first one on for INTERVAL_S seconds; at its end those without a line are logged."""

    def __init__(self) -> None:
        self._lines = 0
        self._methods: Counter[str] = Counter()
        self._hosts: Counter[str] = Counter()

    def take(self, method: str, peer: str) -> bool:
        """Whether this refused call gets a line; else it is counted."""
        if not self._lines:
            asyncio.get_running_loop().call_later(INTERVAL_S, self._end)
        if self._lines < LINES:
            self._lines += 1
            return True
        self._methods[method] += 1
        host = peer.rpartition(":")[0]
        if host in self._hosts or len(self._hosts) < HOSTS_MAX:
            self._hosts[host] += 1
        return False

    def _end(self) -> None:
        if self._methods:
            audit.info(
                "admin.refused",
                calls=self._methods.total(),
                seconds=INTERVAL_S,
                methods=dict(self._methods),
                peers=dict(self._hosts.most_common(NAMED_MAX)),
                help=f"beside {LINES} that are in the log as admin.call",
            )
        self._lines = 0
        self._methods.clear()
        self._hosts.clear()
