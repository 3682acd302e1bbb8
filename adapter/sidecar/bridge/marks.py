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
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.runtime.durable.files import replacing
from adapter.sidecar.bridge.agreement import era_of

log = structlog.get_logger(__name__)

FILE = "rocketmq.json"
_MAX_BYTES = 64 * 2**20


@dataclass
class Marks:
    """The content of the file. `boot_ms` is 0 until the store has agreed with some life of the broker.

    `changed`: whether the file is out of date.
    """

    broker: str = ""
    boot_ms: int = 0
    eras: dict[OffsetKey, int] = field(default_factory=dict)
    ceilings: dict[OffsetKey, int] = field(default_factory=dict)
    changed: bool = field(default=False, compare=False)

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

    def note_life(self, boot_ms: int) -> None:
        """Remember the life with which the store has agreed; of one that cannot be named yet (0), the one before stays."""
        if boot_ms:
            self.boot_ms = boot_ms
            self.changed = True

    def forget_life(self) -> None:
        """Of a broker that was a slave: what it copied may be older than what is here, so the larger values stand."""
        self.boot_ms = 0
        self.changed = True

    def agree(self, key: OffsetKey, stored: OffsetRecord | None) -> None:
        """Note that the broker has what is stored."""
        era = era_of(stored.epoch) if stored else 0
        if era != self.eras.get(key, 0):
            self.eras[key] = era
            self.changed = True
        if stored and stored.offset > self.ceilings.get(key, stored.offset):
            del self.ceilings[key]
            self.changed = True

    def raise_ceiling(self, key: OffsetKey, offset: int) -> None:
        """Note up to which offset the broker may come back."""
        if offset > self.ceilings.get(key, -1):
            self.ceilings[key] = offset
            self.changed = True

    def forget(self, key: OffsetKey) -> None:
        """Remember nothing of an offset."""
        for marks in (self.eras, self.ceilings):
            self.changed |= marks.pop(key, None) is not None

    def save(self, path: Path) -> None:
        """Replace the file, synced. An error is logged: the file serves rare cases, and commits do not wait for it."""
        self.changed = False
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
