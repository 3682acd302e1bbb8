"""Plans of changes: what counts as the same result, whose they are, and how long and how many are kept."""

import pytest

from adapter.console.changes import plans as change_plans
from adapter.console.changes.plans import (
    KEPT_S,
    PLANS_MAX,
    WAITING_S,
    DryRun,
    End,
    EndRow,
    Place,
    Plan,
    Plans,
    Result,
    Row,
    State,
)
from adapter.console.changes.run import user_of
from adapter.console.changes.wish import Wish
from adapter.errors import OverloadedError
from adapter.model.records import U64_MAX, GroupKey

ANN = ("ann", "session")
WISH = Wish("reset", GroupKey("default", "g"), "offset", 3)
ERA = 1 << 32


def row(shard: str = "a", after: int = 3, *, before: int = 7, era: int = 1, adapter: str = "x", changes: bool = True) -> Row:
    """One shard of a dry run."""
    return Row(adapter, shard, Place(1, before, deleted=False), Place(era * ERA, after, deleted=False), changes, "")


def dry(*rows: Row) -> DryRun:
    """A dry run of these rows."""
    return DryRun(rows, [], {})


def test_dry_runs_with_the_same_result_have_the_same_digest() -> None:
    """Whatever the offsets were before, whoever changes them, and in which order they are."""
    same = dry(row("a"), row("b"))
    assert same.digest == dry(row("b", before=100, adapter="y"), row("a", before=0)).digest
    assert same.digest == dry(row("a"), row("b"), row("c", changes=False)).digest
    others = [
        dry(row("a")),
        dry(row("a"), row("b"), row("c")),
        dry(row("a"), row("b", after=4)),
        dry(row("a"), row("b", era=2)),
        dry(row("a"), row("b")._replace(most=9)),
        dry(row("a"), row("b")._replace(after=Place(ERA, 3, deleted=True))),
    ]
    assert same.digest not in {other.digest for other in others}
    assert len({other.digest for other in others}) == len(others)


def test_what_is_done_is_what_was_confirmed_or_named() -> None:
    """The same shards, each between the offset that was shown and the highest that counts, with no other reset in between."""
    exact, moving = row("a"), row("b", 5)._replace(most=9)
    confirmed = dry(exact, moving)
    for after in (5, 9):
        assert dry(exact, row("b", after)).other_than(confirmed) == ""
    assert dry(exact, moving, row("c", changes=False)).other_than(confirmed) == ""
    for other, said in (
        (dry(exact), "b would not be changed any more"),
        (dry(exact, moving, row("c")), "c would be changed as well"),
        (dry(row("a", 4), moving), "a would go to 4, and not to 3"),
        (dry(exact, row("b", 4)), "b would go to 4, and not to 5 to 9"),
        (dry(exact, row("b", 10)._replace(most=U64_MAX)), "b would go to at least 10, and not to 5 to 9"),
        (dry(exact, row("b", 5, era=2)), "b was reset, deleted or cloned meanwhile"),
        (dry(exact._replace(after=Place(ERA, 3, deleted=True)), moving), "a would go to deleted, and not to 3"),
    ):
        assert other.other_than(confirmed) == said


def test_a_plan_is_of_one_person_and_session() -> None:
    """Others find none."""
    plans = Plans(lambda: 0.0)
    plan = plans.add(WISH, dry(row()), ANN)
    assert plans.get(plan.id, ANN) is plan
    assert plans.get(plan.id, ("bob", "session")) is None
    assert plans.get(plan.id, ("ann", "other")) is None
    assert plans.get("", ANN) is None


def ended(plans: Plans, plan: Plan) -> None:
    """A plan that is done."""
    plans.ended(plan, Result([EndRow(row(), End.DONE, None)], [], [], read_back=True))


def test_plans_are_forgotten_after_their_time() -> None:
    """One that waits after a quarter of an hour, one that has ended after an hour, one that is being executed never."""
    now = [0.0]
    plans = Plans(lambda: now[0])
    waiting, done, executing = (plans.add(WISH, dry(row()), ANN) for _ in range(3))
    executing.state = State.EXECUTING
    ended(plans, done)
    for at, left in ((WAITING_S, (waiting, done)), (WAITING_S + 1, (done,)), (KEPT_S, (done,)), (KEPT_S + 1, ())):
        now[0] = at
        assert [plan for plan in (waiting, done) if plans.get(plan.id, ANN)] == [*left]
    assert plans.get(executing.id, ANN) is executing


def test_the_number_of_plans_and_of_their_rows_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest that is not being executed makes room; if all are, there is none."""
    plans = Plans(lambda: 0.0)
    made = [plans.add(WISH, dry(row()), ANN) for _ in range(PLANS_MAX)]
    made[0].state = State.EXECUTING
    plans.add(WISH, dry(row()), ANN)
    assert plans.get(made[0].id, ANN)
    assert plans.get(made[1].id, ANN) is None
    assert plans.get(made[2].id, ANN)
    monkeypatch.setattr(change_plans, "ROWS_MAX", 10)
    large = plans.add(WISH, dry(*(row(str(at)) for at in range(9))), ANN)
    assert [plan for plan in made if plans.get(plan.id, ANN)] == [made[0]]
    large.state = State.EXECUTING
    with pytest.raises(OverloadedError):
        plans.add(WISH, dry(row()), ANN)


def test_a_result_is_complete_when_all_is_done() -> None:
    """And nothing is unknown, refused, different or not tried."""
    for end in End:
        result = Result([EndRow(row(), End.DONE, None), EndRow(row("b"), end, None)], [], [], read_back=True)
        assert result.complete is (end is End.DONE)


@pytest.mark.parametrize(
    ("person", "user"),
    [
        ("ann", "ann"),
        ("ann@example.org (on call)", "ann@example.org (on call)"),
        ("J\u00fcrgen", "J%C3%BCrgen"),
        ("a%b\n", "a%25b%0A"),
    ],
)
def test_names_of_persons_stay_apart_in_the_audit_log(person: str, user: str) -> None:
    """In printable ASCII, as gRPC's metadata has to be."""
    assert user_of(person) == user
