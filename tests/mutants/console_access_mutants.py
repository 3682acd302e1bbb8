"""Bugs of the history of changes, and of the console's access, sessions, forms and changes."""

from tests.mutants.mutant import Mutant

HISTORY = "unit/sidecar/engine/test_history.py::"

CONSOLE_ACCESS_MUTANTS = (
    Mutant(
        "history-rewinds-push-out-resets",
        "sidecar/engine/history.py",
        "        ring = self._own if caller is None else self._asked\n",
        "        ring = self._own\n",
        "consumers that rewind often hide who reset a group",
        (f"{HISTORY}test_rewinds_never_push_out_what_somebody_asked_for",),
    ),
    Mutant(
        "history-since-is-the-start",
        "sidecar/engine/history.py",
        "            self.since_ms = max(self.since_ms, oldest.at_ms + 1)\n",
        "",
        "the page says that nothing else happened since the start, though older changes are forgotten",
        (f"{HISTORY}test_since_is_the_start_until_something_was_pushed_out",),
    ),
    Mutant(
        "history-names-the-wrong-caller",
        "sidecar/engine/history.py",
        "        _caller.reset(token)\n",
        "        pass\n",
        "an expiry is shown as what the last operator did",
        (f"{HISTORY}test_outside_of_a_call_nobody_asked",),
    ),
)
