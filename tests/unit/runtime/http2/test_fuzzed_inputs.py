"""What fuzzing found, and the inputs that it begins with: all targets of tests/fuzz hold on them, without atheris."""

import pytest

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

REGRESSIONS = {
    "a line with many blanks before it": ("kafka", b" " * 5_000 + b"g,t,0,5\n"),
    "a byte order mark that comes in two pieces": (
        "broker",
        b'\xef\xbb\xbf{"offsetTable":{},"dataVersion":{}}' + b"\n" * 12 + b" " * 1,
    ),
}


@pytest.mark.parametrize("target", TARGETS)
def test_the_promises_hold_on_what_fuzzing_begins_with(target: str) -> None:
    """Real files and odd ones, each whole, cut short and with one byte changed."""
    for seed in seeds(target):
        for at in range(0, len(seed), max(len(seed) // 16, 1)):
            TARGETS[target](seed[:at])
            TARGETS[target](seed[:at] + bytes([seed[at] ^ 1]) + seed[at + 1 :])
        TARGETS[target](seed)


@pytest.mark.parametrize(("target", "data"), REGRESSIONS.values(), ids=REGRESSIONS)
def test_what_fuzzing_found_stays_mended(target: str, data: bytes) -> None:
    """Each was a lost row, another error than NotReadableError, or a result that depended on how the file was cut."""
    TARGETS[target](data)
