"""The space of a disk, for the metrics, and a disk that hangs."""

import os
import shutil
import threading
from pathlib import Path

from adapter.runtime.durable import disk_space
from adapter.runtime.durable.disk_space import DiskSpace


def values(space: DiskSpace) -> dict[str, float]:
    """The gauges without their texts."""
    return {name: value for name, (_, value) in space.gauges().items()}


def test_the_space_of_the_file_system_of_a_path_is_told(tmp_path: Path) -> None:
    """Its size as others tell it; free is what a process without privileges may use."""
    found = values(DiskSpace(tmp_path))
    assert found["store_disk_size_bytes"] == shutil.disk_usage(tmp_path).total
    assert 0 <= found["store_disk_free_bytes"] <= found["store_disk_size_bytes"]


def test_free_is_what_is_left_without_privileges(tmp_path: Path) -> None:
    """Not the blocks that are kept for root; in bytes."""
    # bsize, frsize, blocks, bfree, bavail, files, ffree, favail, flag, namemax
    told = os.statvfs_result((65_536, 4_096, 1_000, 300, 250, 0, 0, 0, 0, 255))
    found = values(DiskSpace(tmp_path, lambda _: told))
    assert found == {"store_disk_free_bytes": 250 * 4_096.0, "store_disk_size_bytes": 1_000 * 4_096.0}


def test_a_path_that_is_not_there_has_no_space_and_has_it_when_it_is(tmp_path: Path) -> None:
    """The store tells what is wrong; a scrape goes on."""
    space = DiskSpace(tmp_path / "gone")
    assert values(space) == {}
    (tmp_path / "gone").mkdir()
    assert values(space)


def test_a_disk_that_hangs_is_asked_once_and_its_metrics_are_absent_until_it_answers(tmp_path: Path) -> None:
    """No scrape waits for it again, and no thread is added."""
    answered, asked = threading.Event(), []

    def ask(path: Path) -> os.statvfs_result:
        asked.append(path)
        answered.wait()
        return os.statvfs(path)

    space = DiskSpace(tmp_path, ask)
    before = threading.active_count()
    assert [values(space) for _ in range(5)] == [{}] * 5
    assert asked == [tmp_path]
    assert threading.active_count() == before + 1
    answered.set()
    hanging = space._asking
    assert hanging
    hanging.join()
    assert values(space)
    assert len(asked) == 2


def test_the_wait_is_short() -> None:
    """Well below the timeout of a scrape, of which a second may be set."""
    assert disk_space.WAIT_S <= 0.5
