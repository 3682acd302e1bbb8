"""What ran in a run, and when, as a digest: two processes that play the same seed print the same.

`python -m tests.model.trace SEED` prints a line for each world.
"""

import asyncio
import hashlib
import sys
from unittest import mock

from tests.model.broker import Running
from tests.model.loop import PROCESS, Call, VirtualLoop
from tests.model.plans import draw, play
from tests.model.runs import Everything, quiet
from tests.model.worlds import WORLDS


def trace(world: type[Everything], seed: int) -> str:
    """The digest of a run: what ran, of which adapter, and its virtual time, in order. Raises BrokenRunError."""
    digest = hashlib.sha256()
    run = VirtualLoop._run

    def traced(self: VirtualLoop, call: Call) -> None:
        of = getattr(call._callback, "__self__", None)
        what = of.get_coro() if isinstance(of, asyncio.Task) else call._callback
        whose = call._context.get(PROCESS)
        name = whose.broker.name if isinstance(whose, Running) else ""
        digest.update(f"{self.now!r} {name} {getattr(what, '__qualname__', type(what).__name__)}\n".encode())
        run(self, call)

    with quiet(), mock.patch.object(VirtualLoop, "_run", traced):
        play(world, draw(world, seed))
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    for name, world in WORLDS.items():
        sys.stdout.write(f"{name} {trace(world, int(sys.argv[1]))}\n")
