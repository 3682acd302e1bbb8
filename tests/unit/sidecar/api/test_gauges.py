"""The age of what is not synced, by what scrapes see; and what is told of a store."""

from dataclasses import dataclass

import pytest

from adapter.sidecar.api.gauges import UnsyncedAge


@dataclass
class Counters:
    """A store's counters."""

    seq: int = 0
    synced_seq: int = 0

    @property
    def unsynced_writes(self) -> int:
        """As of a store."""
        return self.seq - self.synced_seq


def ages(*seen: tuple[float, int, int]) -> list[float]:
    """The ages at scrapes that see (time, newest write, newest synced write)."""
    age, store = UnsyncedAge(), Counters()
    found = []
    for now_s, store.seq, store.synced_seq in seen:
        found.append(age.age_s(store, now_s))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param([(0, 0, 0), (15, 9, 9)], [0, 0], id="all is synced"),
        pytest.param([(0, 5, 3), (15, 5, 3), (30, 5, 3)], [0, 15, 30], id="a sync hangs"),
        pytest.param([(0, 5, 3), (15, 9, 3), (30, 20, 3)], [0, 15, 30], id="writes go on meanwhile"),
        pytest.param([(0, 5, 3), (15, 9, 7), (30, 12, 10)], [0, 0, 0], id="syncs keep up, each scrape sees newer writes"),
        pytest.param([(0, 5, 3), (15, 9, 3), (30, 9, 9), (45, 12, 9)], [0, 15, 0, 0], id="it is over, and begins anew"),
        pytest.param([(0, 5, 5), (3_600, 6, 5)], [0, 0], id="a write after an idle hour is new"),
    ],
)
def test_an_age_is_that_of_a_write_that_a_scrape_saw_unsynced(seen: list[tuple[float, int, int]], expected: list[float]) -> None:
    """Never more than the truth."""
    assert ages(*seen) == expected


def test_another_store_begins_anew() -> None:
    """It was opened again: its writes are other ones."""
    age = UnsyncedAge()
    assert age.age_s(Counters(9, 3), 0) == 0  # type: ignore[arg-type]
    assert age.age_s(Counters(9, 3), 60) == 0  # type: ignore[arg-type]
