"""Any sequence of commits, faults, kills and rivals against a model: invariants 1 to 4 hold after every step."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from adapter.errors import DiskFullError, MetaUnavailableError
from adapter.metaservice.engine import buried
from adapter.model import OffsetKey, OffsetRecord, SaveEntry, meet
from adapter.reads import Wanted
from adapter.testing import FakeMeta
from tests.unit.helpers import applied_then, commit_of, during, key, record, refusing, send
from tests.unit.machine import Broker

KEYS = [key("a"), key("b"), key("a", "h")]
BIG = "m" * 4_000  # a few of these are a chunk each, so that a flush can fail in its middle
DOWN = MetaUnavailableError("down by the test")
FULL = DiskFullError("full by the test")

keys = st.sampled_from(KEYS)
offsets = st.integers(0, 8)
metadata = st.sampled_from(["", "x", BIG])


class FlushModel(RuleBasedStateMachine):
    """One adapter, its Meta Service, and other writers there. Deterministic: nothing runs between two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.meta = FakeMeta()
        self.broker = Broker(self.meta)
        self.seen_here: dict[OffsetKey, OffsetRecord] = {}
        self.seen_there: dict[OffsetKey, OffsetRecord] = {}

    @initialize(known=st.booleans())
    def begin(self, known: bool) -> None:
        """Recovered from an empty store, or not yet."""
        if known:
            self.broker.run(self.broker.core.recovery.run())

    @rule(where=keys, offset=offsets, overwrite=st.booleans(), text=metadata)
    def commit(self, where: OffsetKey, offset: int, overwrite: bool, text: str) -> None:
        """A broker commits: what it is answered stands here (1)."""
        answer = self.broker.run(send(self.broker.core, commit_of({where: offset}, overwrite=overwrite, metadata=text)))
        if isinstance(answer, list):
            assert answer[0].record == self.broker.cache.get(where)
            assert answer[0].record is not None
            assert overwrite or answer[0].record.offset >= offset or answer[0].record.epoch > 1

    @rule(shards=st.sets(st.sampled_from("ab")))
    def flush_refused_in_part(self, shards: set[str]) -> None:
        """The Meta Service refuses some entries."""
        self._flush(refusing(self.meta, shards))

    @rule()
    def flush(self) -> None:
        """An untroubled flush."""
        self._flush()

    @rule(before=st.integers(0, 2), applied=st.booleans())
    def flush_that_fails(self, before: int, applied: bool) -> None:
        """Some chunks go through, one is lost or answered too late."""
        for _ in range(before):
            self.meta.faults.append(during(self.meta, _nothing))
        self._flush(applied_then(self.meta, DOWN) if applied else DOWN)

    @rule(where=keys, offset=offsets, overwrite=st.booleans(), fails=st.booleans())
    def flush_with_a_commit_inside(self, where: OffsetKey, offset: int, overwrite: bool, fails: bool) -> None:
        """A commit comes exactly while the save is under way."""

        async def inside() -> None:
            await self.broker.core.committer.submit(commit_of({where: offset}, overwrite=overwrite))
            if fails:
                raise DOWN

        self._flush(during(self.meta, inside))

    @rule()
    def flush_with_a_full_disk(self) -> None:
        """The Meta Service takes it, but what stands there cannot be stored here."""
        self.broker.cache.refuses = FULL
        self._flush()
        self.broker.cache.refuses = None

    @rule(limit=st.booleans())
    def flush_what_was_refused(self, limit: bool) -> None:
        """The pause after a refusal is over, or an operator asks for it."""
        if limit:
            self.broker.core.dirty.retry_refused()
        else:
            self.broker.run(self.broker.core.flusher.flush_all())

    @rule()
    def outage(self) -> None:
        """The Meta Service goes or comes back."""
        self.meta.down = None if self.meta.down else DOWN

    @rule(where=keys, offset=offsets, epochs=st.sampled_from([0, 0, 0, 1]))
    def another_writer(self, where: OffsetKey, offset: int, epochs: int) -> None:
        """Another broker commits, or an admin resets, in the Meta Service."""
        standing = self.meta.records.get(where, record(0))
        self.meta.apply([SaveEntry(where, record(offset, standing.epoch + epochs))])

    @rule(where=keys)
    def deletion(self, where: OffsetKey) -> None:
        """An admin deletes the offset in the Meta Service."""
        if where in self.meta.records:
            self.meta.records[where] = buried(self.meta.records[where], 0)

    @rule(where=keys)
    def load(self, where: OffsetKey) -> None:
        """A read of the store."""
        self.broker.run(self.broker.core.reader._loader.load(where.group_key))

    @rule(where=keys, whole=st.booleans())
    def remove(self, where: OffsetKey, whole: bool) -> None:
        """The broker loses a shard, or the group."""
        removed = self.broker.run(self.broker.core.ownership.remove([Wanted(where.group_key, [] if whole else [where.shard])]))
        if isinstance(removed, int):
            for found in KEYS:
                if found == where or (whole and found.group_key == where.group_key):
                    here = self.seen_here.pop(found, None)
                    assert here is None or _covers(self.meta.records.get(found), here)

    @rule()
    def recover(self) -> None:
        """The comparison, whether it is the first or not."""
        self.broker.run(self.broker.core.recovery.run())

    @rule()
    def kill(self) -> None:
        """Kill -9 and a start: the next process finds what is dirty in the store (1, 3)."""
        self.broker.restart(killed=True)

    @rule()
    def stop(self) -> None:
        """An orderly stop, which may not get everything through, and a start."""
        self.broker.restart(killed=False)

    @precondition(lambda self: self.meta.down is None)
    @rule()
    def drain(self) -> None:
        """With the Meta Service there, a drain leaves nothing (8)."""
        assert self.broker.run(self.broker.core.flusher.drain(30.0)) == 0

    @invariant()
    def no_key_goes_backwards(self) -> None:
        """Neither here nor there (2); a value of unknown epoch keeps its offset when it learns the epoch."""
        for where in KEYS:
            here, there = self.broker.cache.get(where), self.meta.records.get(where)
            before = self.seen_here.get(where)
            if before is not None:
                assert here is not None, f"{where} is gone"
                assert here.position >= before.position
                assert before.epoch or here.offset >= before.offset
            if where in self.seen_there:
                assert there is not None
                assert there >= self.seen_there[where]
            self.seen_here.update({where: here} if here else {})
            self.seen_there.update({where: there} if there else {})

    @invariant()
    def a_clean_key_is_in_the_meta_service(self) -> None:
        """With at least the value that stands here (3, 4)."""
        for where in KEYS:
            here = self.broker.cache.get(where)
            if here is not None and where not in self.broker.core.dirty:
                assert _covers(self.meta.records.get(where), here), f"{where}: clean, but {self.meta.records.get(where)} < {here}"

    @invariant()
    def dirty_keys_are_bounded_by_keys(self) -> None:
        """Memory grows with distinct keys, not with commits or failures (4)."""
        assert len(self.broker.core.dirty) <= len(KEYS)

    def teardown(self) -> None:
        """When all troubles are over, everything gets through."""
        try:
            self.meta.down = None
            self.broker.run(self.broker.core.recovery.run())
            assert self.broker.run(self.broker.core.flusher.drain(30.0)) == 0
            assert self.broker.cache.loss is None
            self.a_clean_key_is_in_the_meta_service()
        finally:
            self.broker.close()

    def _flush(self, fault: object = None) -> None:
        """Flush with a fault; a call that was not made leaves no fault for the next flush."""
        if fault:
            self.meta.faults.append(fault)  # type: ignore[arg-type]
        calls = len(self.meta.saves)
        waiting = self.broker.core.dirty.waiting
        self.broker.run(self.broker.core.flusher.flush_once())
        self.meta.faults.clear()
        sent = [entry.key for save in self.meta.saves[calls:] for entry in save]
        # Each dirty key at most once, and nothing else (5, 6).
        assert len(sent) == len(set(sent)) <= waiting


async def _nothing() -> None:
    """A save without trouble."""


def _covers(there: OffsetRecord | None, here: OffsetRecord) -> bool:
    """The Meta Service holds at least this."""
    return there is not None and meet(here, there) == there


def test_invariants_hold_through_any_sequence_of_commits_faults_and_kills() -> None:
    """Cited in the steps: 1, 2, 3, 4, 5, 6, 8."""
    run_state_machine_as_test(
        FlushModel,
        settings=settings(
            max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
        ),
    )
