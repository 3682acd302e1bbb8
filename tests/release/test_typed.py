"""A consumer's code is type-checked against the package, as its author does it: in a directory of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

CONSUMER = """
from adapter.client import AckWindow, BlockingOffsetClient, Member, OffsetClient, Progress, ReadMode, SupersededError

async def consume() -> int:
    async with OffsetClient.connect("127.0.0.1:9520") as client:
        rows = await client.read("g", ["s"], mode=ReadMode.STORE)
        window = AckWindow(rows["s"].offset, epoch=rows["s"].epoch)
        try:
            await client.commit("g", {"s": 42}, epochs={"s": window.epoch}, member=Member(7, "c"))
            await client.commit("g", {"s": Progress(43, high=50)})
        except SupersededError as error:
            return error.moved[0].offset
        return await client.remove("g", ["s"])

with BlockingOffsetClient("127.0.0.1:9520") as blocking:
    blocking.commit("g", {"s": "42"})
"""


# That the marker of a typed package is there, tests/unit/client/test_public.py says.
@pytest.mark.release
def test_a_consumer_is_checked_against_the_types_of_the_client(tmp_path: Path) -> None:
    """The one mistake is found, and nothing else."""
    (tmp_path / "consumer.py").write_text(CONSUMER)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "consumer.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found, summary = ended.stdout.splitlines()
    assert 'incompatible type "str": "str"; expected "str": "int | Progress"' in found
    assert summary == "Found 1 error in 1 file (checked 1 source file)"
