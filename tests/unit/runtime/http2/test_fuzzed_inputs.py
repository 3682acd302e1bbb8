"""The fuzz targets of tests/fuzz, run without atheris on their corpus and on the inputs that fuzzing found."""

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
    """Real and unusual files, each complete, cut short, and with one byte changed."""
    for seed in seeds(target):
        for at in range(0, len(seed), max(len(seed) // 16, 1)):
            TARGETS[target](seed[:at])
            TARGETS[target](seed[:at] + bytes([seed[at] ^ 1]) + seed[at + 1 :])
        TARGETS[target](seed)


@pytest.mark.parametrize(("target", "data"), REGRESSIONS.values(), ids=REGRESSIONS)
def test_what_fuzzing_found_stays_mended(target: str, data: bytes) -> None:
    """Each was a lost row, an error other than NotReadableError, or a result that depended on the chunks."""
    TARGETS[target](data)
