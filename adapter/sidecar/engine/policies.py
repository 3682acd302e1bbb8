"""What has to happen before a commit is acknowledged, for each group as the configuration says.

write_back: the local store has it. write_through: the Meta Service has it.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from adapter.errors import AdapterError
from adapter.meta.client import Telling, failure_of
from adapter.meta.epochless import Saver
from adapter.model.records import (
    FIRST_EPOCH,
    GroupKey,
    Member,
    OffsetKey,
    OffsetRecord,
    SaveEntry,
    SaveOutcome,
    Status,
    resolve,
)
from adapter.runtime.coalescing import Coalescer
from adapter.runtime.serving.large_calls import Room
from adapter.runtime.slices import SLICE, in_slices, others
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.engine.group_loader import GroupLoader
from adapter.sidecar.journal.notes import Moved
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.operations import Commit, Reconcile, Standing
from adapter.sidecar.ledger.rules import decide_commit, goes_back, is_raised
from adapter.sidecar.metrics import AdapterMetrics

MAX_CALLERS = 1_024  # that share one save
MAX_SHARED = 5_000  # offsets of one save, unless one caller alone has more: each goes into one message
MAX_WAITING_BYTES = 64 * 2**20  # of commits that wait for the Meta Service


class _Waiting(NamedTuple):
    """A commit that waits for its turn, and `Ledger.eras` when it came."""

    commit: Commit
    eras: int


class WriteThrough:
    """Commits that are acknowledged when the Meta Service has them. Concurrent commits share one save call."""

    def __init__(
        self,
        ledger: Ledger,
        saver: Saver,
        metrics: AdapterMetrics,
    ) -> None:
        self._ledger = ledger
        self._store = ledger.store
        self._saver = saver
        self._metrics = metrics
        self._journal = ledger.journal
        self._saves: Coalescer[_Waiting, list[Standing]] = Coalescer(
            self._save, max_items=MAX_CALLERS, weight=lambda waiting: waiting.commit.size, max_weight=MAX_SHARED
        )
        self.run = self._saves.run

    async def commit(self, commit: Commit) -> list[Standing]:
        """Commit to the Meta Service, then locally.

        Raises MetaUnavailableError, also when an entry has no answer: the commit does not count, though the Meta Service may have
        applied it. RefusedError when it refused an entry. Else what `Ledger.submit` raises.
        """
        if commit.members:
            # First, and durably: a member of an older generation must not come in behind this one.
            await self._ledger.submit(Commit((), commit.mode, commit.members))
        standing = await self._saves.submit(_Waiting(commit, self._ledger.eras))
        # During the save an expiry or a delete may have forgotten a generation, and a member of an older one have committed.
        forgotten = {group: member for group, member in commit.members.items() if self._is_behind(group, member)}
        if forgotten:
            await self._ledger.submit(Commit((), commit.mode, forgotten))
        return standing

    def _is_behind(self, group: GroupKey, member: Member) -> bool:
        seen = self._store.member(group)
        return seen is None or seen.generation < member.generation

    async def _save(self, waiting: Sequence[_Waiting]) -> list[list[Standing] | AdapterError]:
        commits = [commit._replace(waited=commit.waited or eras != self._ledger.eras) for commit, eras in waiting]
        offers: dict[OffsetKey, OffsetRecord] = {}
        planned = []
        done = 0
        for commit in commits:
            planned.append(self._plan(commit, offers))
            done += commit.size
            if done >= SLICE:
                await others()
                done = 0
        if not offers:
            return planned
        entries = [SaveEntry(key, record) for key, record in offers.items()]
        if any(commit.by_operator for commit in commits):
            entries = Telling(entries)
        with self._metrics.save_call("write_through", len(entries)):
            outcomes = await self._saver.save(entries, uncompared=self._ledger.dirty.is_uncompared)
        self._journal.moved("rewind", self._rewinds(entries, outcomes))
        self._journal.flushed(entries, outcomes)
        by_key = {entry.key: outcome for entry, outcome in zip(entries, outcomes, strict=True)}
        acknowledged = [(key, outcome.standing) for key, outcome in by_key.items() if outcome.status.acknowledged]
        try:
            async for some in in_slices(acknowledged):
                await self._ledger.submit(Reconcile(some))
        except AdapterError:
            # What was saved is not stored here, and so does not count: a lower offset must not be saved over it.
            self._saver.forget(by_key)
            raise
        return [plan if isinstance(plan, AdapterError) else _answer(plan, by_key) for plan in planned]

    def _plan(self, commit: Commit, offers: dict[OffsetKey, OffsetRecord]) -> list[Standing] | AdapterError:
        """Decide one caller's commit against the local values and the earlier callers; all or nothing."""
        plan: list[Standing] = []
        holds = None if commit.by_operator else self._ledger.holds
        try:
            self._ledger.check_members(commit.members)
            for key, offered in commit.offered():
                before = offers[key] if key in offers else self._store.get(key)
                after = decide_commit(key, offered, before, commit.mode, self._store.states, holds, waited=commit.waited)
                plan.append(Standing(key, after, raised=is_raised(before, after)))
        except AdapterError as error:
            return error
        offers.update((key, record) for key, record, _ in plan if record)
        return plan

    def _rewinds(self, entries: Sequence[SaveEntry], outcomes: Sequence[SaveOutcome]) -> list[Moved]:
        """The rewinds in a save that is not adopted here yet."""
        return [
            Moved(key, before, outcome.standing or record)
            for (key, record, _), outcome in zip(entries, outcomes, strict=True)
            if record.epoch > FIRST_EPOCH
            and outcome.status is Status.APPLIED
            and (before := self._store.get(key))
            and goes_back(before, record)
        ]


class Policies:
    """The commit policies of a configuration. Other settings are other policies: a commit keeps those that it began under."""

    def __init__(self, config: AdapterConfig) -> None:
        self._mode_of = lru_cache(maxsize=65_536)(config.mode_of)
        self.all_write_back = config.mode == "write_back" and not config.policy

    def writes_through(self, group: GroupKey) -> bool:
        """True for a group whose commits wait for the Meta Service."""
        return not self.all_write_back and self._mode_of(*group) == "write_through"


class Router:
    """Commits each group by its policy: write_back by the ledger, or write_through.

    `policies` are those in force, for commits that begin now.
    """

    def __init__(self, config: AdapterConfig, ledger: Ledger, loader: GroupLoader, write_through: WriteThrough) -> None:
        # For commits that wait for the Meta Service. Who takes it is the server: it can stop reading.
        self.room = Room("commits that are written through", MAX_WAITING_BYTES)
        self.policies = Policies(config)
        self._said = config.mode, config.policy
        self._loader = loader
        self._ledger = ledger
        self._write_through = write_through

    def take(self, config: AdapterConfig) -> None:
        """Put the policies of these settings in force."""
        said = config.mode, config.policy
        if said != self._said:
            self.policies, self._said = Policies(config), said

    @property
    def at_once(self) -> bool:
        """Whether commits of loaded groups wait for nothing."""
        return self._allows_at_once(self.policies)

    def _allows_at_once(self, policies: Policies) -> bool:
        return policies.all_write_back and not self._ledger.syncs_each

    def commit_at_once(self, commit: Commit, policies: Policies) -> list[Standing] | None:
        """Commit a batch that needs no await, as most do; None if it needs one."""
        if not self._allows_at_once(policies) or self._loader.must_load(commit):
            return None
        return self._ledger.apply(commit)

    async def prepare(self, commit: Commit) -> Commit:
        """Load the groups of keys that are not local; returns what to commit. Commits apply in the order of their preparation."""
        return await self._loader.load_for(commit)

    async def commit(self, commit: Commit, policies: Policies | None = None) -> list[Standing]:
        """Commit a batch; returns what `Ledger.submit` does. What is written through goes first: it is what may fail.

        `policies`: those that the commit began under; by default those in force.
        """
        policies = policies or self.policies
        if policies.all_write_back:
            return await self._ledger.submit(commit)
        standing: list[Standing] = []
        for make_durable, through in ((self._write_through.commit, True), (self._ledger.submit, False)):
            part = commit._replace(
                entries=[entry for entry in commit.entries if policies.writes_through(entry[0].group_key) is through],
                columns=[columns for columns in commit.columns if policies.writes_through(columns.group) is through],
            )
            if part.entries or part.columns:
                standing += await make_durable(part)
        return standing


def _answer(plan: Sequence[Standing], outcomes: dict[OffsetKey, SaveOutcome]) -> list[Standing] | AdapterError:
    answer = []
    for key, record, raised in plan:
        outcome = outcomes[key]
        if not outcome.status.acknowledged:
            return failure_of(key, outcome)
        if outcome.status is Status.APPLIED and record is not None:
            # A later caller of the same save may have committed more: this one was applied as well.
            answer.append(Standing(key, resolve(record, outcome.standing), raised))
        else:
            answer.append(Standing(key, outcome.standing))
    return answer
