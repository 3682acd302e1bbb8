"""One StreamCommits call: its requests are committed and answered in their order, many of them under way at once.

What is committed is answered, also when the reading of requests is ended at that moment. Plain answers in a row are one reply.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple, TypeGuard

from adapter.errors import AdapterError, NotReadyError
from adapter.rpc import offsets_pb
from adapter.runtime.serving.http2.call import Requests
from adapter.runtime.serving.statuses import status_of
from adapter.sidecar.api.commits import Committing, PreparedCommit, ReplyRows
from adapter.sidecar.engine.policies import Policies

Request = offsets_pb.StreamCommitsRequest
Reply = offsets_pb.StreamCommitsReply

MAX_PIPELINED = 256  # unanswered requests of one stream; beyond that its reading stops, and with it the sender
MAX_PIPELINED_BYTES = 4 * 2**20  # of requests that wait for something, and of answers that are not taken; the same


class _Offered(NamedTuple):
    """The result of a run that was offered to the fast path."""

    answered: int  # requests, from the first
    left: bool  # whether the fast path left the one behind them


class CommitStream:
    """The state of one stream: its unanswered requests, and the replies that wait to be sent."""

    def __init__(self, commits: Committing) -> None:
        self._commits = commits
        # Replies, and tasks that end with one, in the order of the requests.
        self._answers: deque[Reply | asyncio.Task[Reply]] = deque()
        self._unfinished: set[asyncio.Task[Reply]] = set()
        self._policies: Policies | None = None  # that they began under
        self._unanswered = 0
        self._bytes = 0  # of requests that wait for something, and of rows in replies that are not taken
        self._ended = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()

    async def read(self, requests: Requests) -> None:
        """Commit the requests, as many concurrently as there is room for. A reply that is not sent yet keeps its room."""
        async for request in requests:
            run: list[Request] = [request, *requests.arrived(MAX_PIPELINED - self._unanswered - 1)]
            while run:
                await self._wait_for_turn(run[0])
                room = 1 if self._unfinished else MAX_PIPELINED - self._unanswered
                answered, left = await self._offer(run[:room])
                del run[:answered]
                if left:
                    await self._wait_for_turn(run[0])
                    await self._commit(run.pop(0))

    async def replies(self, reader: asyncio.Task[None]) -> AsyncIterator[Reply]:
        """Yield the replies in order, until the reader has ended and all are sent."""
        reader.add_done_callback(self._end)
        while self._answers or not self._ended:
            if not self._answers:
                self._changed.clear()
                await self._changed.wait()
                continue
            answer = self._answers.popleft()
            reply = await answer if isinstance(answer, asyncio.Task) else answer
            yield reply
            self._unanswered -= reply.covers
            self._bytes -= _rows_size(reply)
            self._room.set()

    async def _wait_for_turn(self, request: Request) -> None:
        """Return when there is room for a request, and for an OVERWRITE when all before it are done.

        A rewind means something only in its place, even when a part of what came before goes to the Meta Service first. And after
        the policies were replaced, no commit that is answered at once may overtake one that waits for the Meta Service.
        """
        while self._unanswered >= MAX_PIPELINED or self._bytes >= MAX_PIPELINED_BYTES:
            self._room.clear()
            await self._room.wait()
        if self._unfinished and (_is_ordered(request) or self._has_other_policies()):
            await asyncio.wait(self._unfinished)

    def _has_other_policies(self) -> bool:
        """Whether a request that begins now would have other policies than those that are not finished."""
        try:
            return self._commits.policies is not self._policies
        except NotReadyError:
            return False

    def _add(self, answer: "Reply | asyncio.Task[Reply]") -> None:
        last = self._answers[-1] if self._answers else None
        self._unanswered += answer.covers if isinstance(answer, Reply) else 1
        if _is_plain(answer) and _is_plain(last):
            last.id = answer.id
            last.covers += answer.covers
        else:
            self._bytes += _rows_size(answer) if isinstance(answer, Reply) else 0
            self._answers.append(answer)
            self._changed.set()

    def _end(self, _: asyncio.Task[None]) -> None:
        self._ended = True
        self._changed.set()

    async def _offer(self, run: list[Request]) -> _Offered:
        """Offer a run to the fast path, and reply to what it commits. An error is the reply to the first request of the run."""
        offered: asyncio.Future[_Offered] = asyncio.get_running_loop().create_future()

        def done(count: int, error: AdapterError | None) -> None:
            # Answered here, not behind the await: a reader that is ended meanwhile does not get there.
            if error:
                self._add(_refusal(run[0].id, error))
            elif count:
                self._add(Reply(id=run[count - 1].id, covers=count))
            if not offered.done():
                offered.set_result(_Offered(1, left=False) if error else _Offered(count, left=count < len(run)))

        self._commits.offer([request.commit for request in run], done)
        return await offered

    async def _commit(self, request: Request) -> None:
        """Commit what the fast path left, or start to: if it has to wait, a task continues while the next request is read."""
        try:
            begun = await self._commits.begin(request.commit, offered=True, patient=True)
        except AdapterError as error:
            self._add(_refusal(request.id, error))
            return
        if not isinstance(begun, PreparedCommit):
            # `begin` awaits nothing behind the write: no end of the reader comes between it and this answer.
            self._add(_reply(request.id, begun))
            return
        room = begun.checked.core.router.room
        if begun.room:
            await room.wait(begun.room)
        self._bytes += begun.memory
        self._policies = begun.policies
        task = asyncio.create_task(self._finish(request.id, begun), name="stream.commit")
        self._add(task)
        self._unfinished.add(task)

        def ended(task: asyncio.Task[Reply]) -> None:
            self._unfinished.discard(task)
            room.give_back(begun.room)
            self._bytes -= begun.memory
            self._room.set()
            if not task.cancelled() and not task.exception():
                self._bytes += _rows_size(task.result())

        task.add_done_callback(ended)
        if _is_ordered(request):
            await asyncio.wait([task])

    async def _finish(self, number: int, prepared: PreparedCommit) -> Reply:
        try:
            return _reply(number, await self._commits.finish(prepared))
        except AdapterError as error:
            return _refusal(number, error)


def _reply(number: int, rows: ReplyRows) -> Reply:
    return Reply(id=number, superseded=rows.superseded, covers=1, raised=rows.raised)


def _rows_size(reply: Reply) -> int:
    return reply.ByteSize() if reply.superseded or reply.raised else 0


def _is_ordered(request: Request) -> bool:
    """True for an OVERWRITE: it must be decided after all requests before it, and before all requests after it."""
    return bool(request.commit.mode == offsets_pb.OVERWRITE)


def _is_plain(answer: Reply | asyncio.Task[Reply] | None) -> TypeGuard[Reply]:
    return isinstance(answer, Reply) and not (answer.code or answer.superseded or answer.raised)


def _refusal(number: int, error: AdapterError) -> Reply:
    code: int = status_of(error).value[0]
    return Reply(id=number, code=code, message=str(error), covers=1)
