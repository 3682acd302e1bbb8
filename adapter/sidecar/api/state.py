"""Where the sidecar is between start and stop, and the core that serves meanwhile."""

from collections.abc import Collection

import anyio

from adapter.errors import NotReadyError
from adapter.rpc import offsets_pb
from adapter.runtime import notify
from adapter.sidecar.engine.core import Core

State = offsets_pb.StatusReply

SERVES = {State.SERVING, State.DEGRADED}  # all calls are taken; DEGRADED refuses some of them by itself
TAKES_COMMITS = SERVES | {State.RECOVERING}
FIRST_ANSWER_S = 2.0  # how long a call waits at a start: less than clients do, and longer than a Meta Service that is there needs


class SidecarState:
    """The state, its reason if there is one, and the core while a store is open."""

    def __init__(self) -> None:
        self.state: offsets_pb.StatusReply.State.ValueType = State.STARTING
        self.reason = ""
        self.core: Core | None = None
        self._entered = anyio.Event()

    def enter(self, state: offsets_pb.StatusReply.State.ValueType, reason: str = "") -> None:
        """Change the state."""
        self.state = state
        self.reason = reason
        self._entered.set()
        self._entered = anyio.Event()
        notify.manager().status(self.ready()[1])

    def attach(self, core: Core) -> None:
        """Note that a store is open and its recovery begins: commits are taken from now on."""
        self.core = core
        self.enter(State.RECOVERING)

    def detach(self) -> None:
        """Note that the store is about to be closed: no request may use it from now on."""
        self.core = None

    def serving_core(self) -> Core:
        """The core for a request that begins now, of any kind. Raises NotReadyError if none may begin.

        Not before the Meta Service has said what it knows of this store. A read then has its own group compared first.
        """
        return self._core_in(SERVES)

    async def serving(self) -> Core:
        """The same, waiting for that first answer of the Meta Service, for FIRST_ANSWER_S at most."""
        if self.state == State.RECOVERING:
            with anyio.move_on_after(FIRST_ANSWER_S):
                await self._entered.wait()
        return self.serving_core()

    def committing_core(self) -> Core:
        """The core for a commit, which may begin as soon as the store is open: what the recovery finds is merged with it."""
        return self._core_in(TAKES_COMMITS)

    def ready(self) -> tuple[bool, str]:
        """For `/readyz`: whether all calls are accepted, also without the Meta Service; and the state with its reason."""
        return self.state in SERVES, ": ".join(filter(None, [self._name, self.full_reason()]))

    def full_reason(self) -> str:
        """Why the state is what it is, with how far a recovery is that goes on."""
        core = self.core  # once: this is called in the metrics thread, too
        if core is None or self.state not in TAKES_COMMITS:
            return self.reason
        if self.state == State.RECOVERING:
            return "commits are taken, all else waits until the Meta Service has said what it knows of this store"
        if core.ledger.recovered.once:
            return self.reason
        report = core.recovery.report
        compared = f"the recovery has compared {report.compared} of {report.of} keys, and goes on"
        return "; ".join(filter(None, [self.reason, compared]))

    def _core_in(self, states: Collection[offsets_pb.StatusReply.State.ValueType]) -> Core:
        if self.core is None or self.state not in states:
            raise NotReadyError(f"the adapter is {self._name}: {self.full_reason() or 'try again soon'}")
        return self.core

    @property
    def _name(self) -> str:
        return State.State.Name(self.state).lower()
