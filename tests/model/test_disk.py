"""The simulated disk: what is read in a thread may be out of date when it comes."""

import asyncio

import pytest

from tests.model import disk
from tests.model.disk import Platter, SimDisk


async def test_a_page_that_comes_late_does_not_have_what_was_written_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as of when it was read."""
    monkeypatch.setattr(disk, "LATE_S", (0.05,))
    simulated = SimDisk(Platter(), lambda: None)
    reading = asyncio.create_task(simulated.apart(lambda: simulated.get(b"key")))
    await asyncio.sleep(0.01)
    batch = simulated.batch()
    batch.put(b"key", b"value")
    simulated.write(batch)
    assert not reading.done()
    assert await reading is None
    assert simulated.get(b"key") == b"value"
