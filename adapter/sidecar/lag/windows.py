"""The windows of the shards that are not well, in a file beside the store: a restart must not hide a group that is dead.

They are those of at most MAX_SHARDS shards, the worst; those that are well begin anew. The file is no part of what is promised:
it is not synced, and one that is missing, damaged, or of a later version is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import structlog

from adapter.model.lag_rows import Bools, Commits, Ints

log = structlog.get_logger(__name__)

MAX_SHARDS = 10_000  # 4 MB
FORM = 1  # of the file

_COMMITS = tuple(field.name for field in fields(Commits))
_FLAT = ("highs", "lows", "told", "anew")
_WIDE = ("times", "epochs", "offsets", "lags")


@dataclass(frozen=True)
class Windows:
    """Shards by their packed names, with their commits; whether each was STOP; and the last bounds of its log, -1 if unknown.

    `told`: when the bounds were told, in microseconds. `anew`: as of `Heads`; `logs`: their identities, or empty.
    """

    keys: Sequence[bytes]
    commits: Commits
    stopped: Bools
    highs: Ints
    lows: Ints
    told: Ints
    anew: Ints
    logs: Sequence[str]


class WindowsFile:
    """Keeps the windows of one store. Blocks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fails = False

    def load(self) -> Windows | None:
        """What was kept last; None if there is nothing that can be used."""
        try:
            with np.load(self._path, allow_pickle=False) as arrays:
                return _windows({name: arrays[name] for name in arrays.files})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            log.warning("lag.windows_unreadable", path=str(self._path), reason=str(error), help="they begin anew")
            return None

    def save(self, windows: Windows) -> None:
        """Replace what was kept."""
        fresh = self._path.with_name(f"{self._path.name}.new")
        try:
            with fresh.open("wb") as file:
                np.savez(file, allow_pickle=False, **_arrays(windows))
            fresh.replace(self._path)
            self._fails = False
        except OSError as error:
            if not self._fails:
                log.warning(
                    "lag.windows_not_kept", path=str(self._path), reason=str(error), help="a restart will begin them anew"
                )
            self._fails = True


def _arrays(windows: Windows) -> dict[str, Ints | Bools]:
    return {
        "form": np.array([FORM]),
        "names": np.frombuffer(b"".join(windows.keys), np.uint8),
        "sizes": np.fromiter(map(len, windows.keys), np.int64, len(windows.keys)),
        "logs": np.array(windows.logs, np.str_),
        **{name: getattr(windows.commits, name) for name in _COMMITS},
        **{name: getattr(windows, name) for name in ("stopped", *_FLAT)},
    }


def _windows(arrays: dict[str, Ints | Bools]) -> Windows:
    """Raises ValueError or KeyError for what is not in this form."""
    form, sizes, names = arrays["form"], arrays["sizes"], arrays["names"].tobytes()
    shapes = {arrays[name].shape for name in (*_COMMITS, "stopped", *_FLAT, "logs") if name not in _WIDE}
    wide = {arrays[name].shape for name in _WIDE}
    if (
        form.tolist() != [FORM]
        or int(sizes.sum()) != len(names)
        or shapes != {sizes.shape}
        or {one[:1] for one in wide} != shapes
    ):
        raise ValueError(f"it is in form {form.tolist()}, or incomplete; this version reads form {FORM}")
    ends = np.cumsum(sizes).tolist()
    keys = [names[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]
    commits = Commits(*(arrays[name].astype(np.int64) for name in _COMMITS))
    highs, lows, told, anew = (arrays[name].astype(np.int64) for name in _FLAT)
    return Windows(keys, commits, arrays["stopped"].astype(np.bool_), highs, lows, told, anew, arrays["logs"].tolist())
