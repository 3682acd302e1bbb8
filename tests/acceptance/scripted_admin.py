"""An adapter that answers as a test scripts it, and the command run against it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from adapter.rpc import offsets_grpc, offsets_pb
from tests.acceptance.conftest import Ran, run

Change = offsets_pb.ChangeReply
Described = offsets_pb.DescribeGroupReply


class RefusalError(Exception):
    """Ends a call with a status."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class ScriptedAdmin(offsets_grpc.OffsetAdminServicer):
    """An adapter whose groups have some shards at offset 7, and which keeps the changes that it is asked for."""

    def __init__(self, shards: int = 0) -> None:
        self.shards = [f"t/{at}" for at in range(shards)]
        self.changes: list[Any] = []
        self.script: Callable[[Any], Change] = done
        self.described = Described()
        self.too_large = ""  # a group that cannot be described

    def change(self, request: Any, context: grpc.ServicerContext) -> Change:
        """Any change."""
        self.changes.append(request)
        try:
            return self.script(request)
        except RefusalError as refusal:
            context.abort(refusal.code, str(refusal))
            raise

    ResetOffsets = DeleteOffsets = CloneGroup = ImportOffsets = change
    Status = Flush = SnapshotOffsets = Reload = ListChanges = None  # type: ignore[assignment] # which nobody calls here

    def ExportOffsets(self, request: Any, context: Any) -> Iterator[offsets_pb.ExportOffsetsReply]:  # noqa: ARG002
        for name in [group.group for group in request.groups] or [f"g{at}" for at in range(5)]:
            rows = [offsets_pb.ShardOffset(group=name, namespace="default", shard=shard, offset=7) for shard in self.shards]
            yield offsets_pb.ExportOffsetsReply(offsets=rows)

    def ListGroups(self, request: Any, context: Any) -> offsets_pb.ListGroupsReply:  # noqa: ARG002
        at = int(request.page_token or b"0")
        row = offsets_pb.ListGroupsReply.Group(namespace="default", group=f"g{at}", shards=1)
        return offsets_pb.ListGroupsReply(groups=[row], next_page_token=b"" if at == 4 else str(at + 1).encode())

    def DescribeGroup(self, request: Any, context: Any) -> Described:
        if request.group == self.too_large:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"group: default/{request.group} has too many")
        return self.described

    def DescribeGroups(self, request: Any, _context: Any) -> Iterator[offsets_pb.DescribeGroupsReply]:
        for group in request.groups:
            reply = offsets_pb.DescribeGroupsReply()
            if group == self.too_large:
                reply.groups.add(group=group, error=f"group: default/{group} has too many")
            else:
                reply.groups.add(group=group, description=self.described)
            yield reply

    @property
    def executed(self) -> list[bool]:
        """Of each change, whether it was to be executed."""
        return [request.execute for request in self.changes]


def done(request: Any, warning: str = "") -> Change:
    """A change that went well: one row per shard that the request names."""
    shards = list(getattr(request, "shards", ())) or ["t/0"]
    position = offsets_pb.Position(epoch=1, offset=7)
    rows = [Change.Row(namespace="default", group="g", shard=shard, after=position, changed=True) for shard in shards]
    return Change(rows=rows, executed=request.execute, warnings=[warning] if warning else [])


def refusing(number: int, code: grpc.StatusCode, *, execute: bool) -> Callable[[Any], Change]:
    """A script that refuses the request of this number, of the dry runs or of those that are to be executed."""
    left = [number]

    def script(request: Any) -> Change:
        if request.execute == execute:
            left[0] -= 1
            if left[0] == 0:
                raise RefusalError(code, "for a reason")
        return done(request)

    return script


class Tool:
    """The command, and the adapter that it calls."""

    def __init__(self, admin: ScriptedAdmin, address: str, directory: Path) -> None:
        self.admin = admin
        self.directory = directory
        self._address = address

    def __call__(self, *arguments: str | Path, columns: str = "200", terminal: bool = False) -> Ran:
        """Run a command."""
        return run(*arguments, OFFSET_ADAPTER_ADDRESS=self._address, COLUMNS=columns, FORCE_COLOR="1" if terminal else "")

    def plan_of(self, count: int) -> Path:
        """A file with so many shards."""
        path = self.directory / "plan.csv"
        path.write_text("".join(f"t,{at},5\n" for at in range(count)))
        return path


@contextmanager
def serving(admin: ScriptedAdmin, directory: Path) -> Iterator[Tool]:
    """Serve it on a Unix socket."""
    server = grpc.server(ThreadPoolExecutor(2))
    offsets_grpc.add_OffsetAdminServicer_to_server(admin, server)
    address = f"unix:{directory}/a.sock"
    server.add_insecure_port(address)
    server.start()
    try:
        yield Tool(admin, address, directory)
    finally:
        server.stop(None).wait()
