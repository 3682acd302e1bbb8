"""What the bridge has to remember across restarts of the sidecar: a small file in the directory of the local store.

It names the life of the broker with which the store agreed last, the resets that the broker has got, and the offsets up to
which a broker that was killed may come back with values from before a rewind. Without the file, or with one of another broker,
nothing is remembered, and the larger value of each offset stands.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from adapter.errors import InvalidInputError
from adapter.model.records import OffsetKey
from adapter.runtime.files import replacing

log = structlog.get_logger(__name__)

FILE = "rocketmq.json"
_MAX_BYTES = 64 * 2**20


@dataclass
class Marks:
    """The content of the file. `boot_ms` is 0 until the store has agreed with some life of the broker."""

    broker: str = ""
    boot_ms: int = 0
    eras: dict[OffsetKey, int] = field(default_factory=dict)
    ceilings: dict[OffsetKey, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "Marks":
        """Read the file; empty marks if there is none, or none that can be read, which is logged."""
        try:
            with path.open("rb") as file:
                values = json.loads(file.read(_MAX_BYTES))
            return cls(str(values["broker"]), int(values["boot_ms"]), _unpacked(values["eras"]), _unpacked(values["ceilings"]))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("rocketmq.marks", path=str(path), error=str(error), help="the larger value of each offset stands")
            return cls()

    def save(self, path: Path) -> None:
        """Replace the file, synced. An error is logged: the file serves rare cases, and commits do not wait for it."""
        values = {
            "broker": self.broker,
            "boot_ms": self.boot_ms,
            "eras": _packed(self.eras),
            "ceilings": _packed(self.ceilings),
        }
        try:
            with replacing(path) as file:
                file.write(json.dumps(values, ensure_ascii=False, indent=1).encode())
        except InvalidInputError as error:
            log.error(
                "rocketmq.marks", path=str(path), error=str(error), help="a rewind may be forgotten when the broker is killed"
            )


def _packed(marks: dict[OffsetKey, int]) -> list[list[object]]:
    return [[*key, value] for key, value in sorted(marks.items())]


def _unpacked(rows: list[list[object]]) -> dict[OffsetKey, int]:
    found: dict[OffsetKey, int] = {}
    for namespace, group, shard, value in rows:
        key = OffsetKey(str(namespace), str(group), str(shard))
        if not isinstance(value, int):
            raise TypeError(f"{'/'.join(key)} has the mark {value!r}")
        found[key] = value
    return found
