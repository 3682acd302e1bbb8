"""Where the sidecar is between start and stop, and the core that serves meanwhile."""

from adapter.errors import NotReadyError
from adapter.rpc import offsets_pb
from adapter.runtime import notify
from adapter.sidecar.engine.core import Core

State = offsets_pb.StatusReply

SERVES = {State.SERVING, State.DEGRADED}  # commits are taken


class SidecarState:
    """The state, its reason if there is one, and the core while a store is open."""

    def __init__(self) -> None:
        self.state: offsets_pb.StatusReply.State.ValueType = State.RECOVERING
        self.reason = ""
        self.core: Core | None = None

    def enter(self, state: offsets_pb.StatusReply.State.ValueType, reason: str = "") -> None:
        """Change the state."""
        self.state = state
        self.reason = reason
        notify.manager().status(self.ready()[1])

    def attach(self, core: Core) -> None:
        """Note that a store is open and its recovery begins."""
        self.core = core
        self.enter(State.RECOVERING)

    def detach(self) -> None:
        """Note that the store is about to be closed: no request may use it from now on."""
        self.core = None

    def serving_core(self) -> Core:
        """The core for a request that begins now. Raises NotReadyError if none may begin."""
        if self.core is None or self.state not in SERVES:
            raise NotReadyError(f"the adapter is {self._name}: {self.reason or 'try again soon'}")
        return self.core

    def ready(self) -> tuple[bool, str]:
        """For `/readyz`: whether commits are accepted, also without the Meta Service; and the state with its reason."""
        return self.state in SERVES, ": ".join(filter(None, [self._name, self.reason]))

    @property
    def _name(self) -> str:
        return State.State.Name(self.state).lower()
