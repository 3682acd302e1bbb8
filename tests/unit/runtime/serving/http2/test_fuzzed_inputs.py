"""The fuzz targets of tests/fuzz, run without atheris on their corpus and on the inputs that fuzzing found."""

from itertools import islice

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


# An adapter starts for each input of these, and waits for its Meta Service.
SLOW = {"meta_replies"}


@pytest.mark.parametrize("target", SLOW)
def test_the_promises_hold_on_some_of_what_fuzzing_begins_with(target: str) -> None:
    """Each complete. `tests/fuzz` changes them."""
    for seed in islice(seeds(target), 0, None, 12):
        TARGETS[target](seed)


@pytest.mark.parametrize("target", [target for target in TARGETS if target not in SLOW])
def test_the_promises_hold_on_what_fuzzing_begins_with(target: str) -> None:
    """Real and unusual files, each complete, cut short, and with one byte changed."""
    for seed in seeds(target):
        for at in range(0, len(seed), max(len(seed) // 5, 1)):
            TARGETS[target](seed[:at])
            TARGETS[target](seed[:at] + bytes([seed[at] ^ 1]) + seed[at + 1 :])
        TARGETS[target](seed)


@pytest.mark.parametrize(("target", "data"), REGRESSIONS.values(), ids=REGRESSIONS)
def test_what_fuzzing_found_stays_mended(target: str, data: bytes) -> None:
    """Each was a lost row, an error other than NotReadableError, or a result that depended on the chunks."""
    TARGETS[target](data)
