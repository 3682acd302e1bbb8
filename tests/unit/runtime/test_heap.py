"""What a full collection frees, and where there is none."""

import gc
import sys
import weakref

import pytest

from adapter.runtime import heap


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_cycles_are_freed_only_where_the_objects_of_the_start_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere a collection would look at all of these, and hold everything up."""
    gc.disable()
    try:
        seen = weakref.ref(_Cycle())
        for frozen, there in ((0, True), (1, False)):
            monkeypatch.setattr(gc, "get_freeze_count", lambda frozen=frozen: frozen)
            heap.collect()
            assert (seen() is not None) is there
    finally:
        gc.enable()


def test_names_that_c_code_looked_up_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a string of its own, which the cache of attributes keeps."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 1)
    name = f"a_name_that_nobody_else_looks_up_{id(monkeypatch)}"
    hasattr(_Cycle, name)
    held = sys.getrefcount(name)
    heap.collect()
    assert sys.getrefcount(name) < held
