"""The places below a RocketMQ broker's config directory that may hold its offsets, and what its settings make of them (5.5.0).

A broker keeps its offsets in one of them. The others stay as they were, and at its start it takes over some of them, or none,
without a word. Looks at names and times only.
"""

import time
from pathlib import Path
from typing import Literal

from adapter.formats.files import LMQ_FILE, Format
from adapter.formats.rocketmq_rocksdb import Layout

JSON_FILE, V1_STORE, SINGLE_STORE, V2_STORE = "consumerOffset.json", "consumerOffsets", "metadata", "rdb"
_WITH = {
    JSON_FILE: "without enableLmq and RocksDB",
    LMQ_FILE: "with enableLmq=true",
    V1_STORE: "with storeType=defaultRocksDB",
    SINGLE_STORE: "with useSingleRocksDBForAllConfigs=true",
    V2_STORE: "with configManagerVersion=v2",
}
_JSON_NOTE = (
    "a broker with storeType=defaultRocksDB takes the file over at its next start, in place of what it has; one with "
    f"configManagerVersion=v2 never does (it needs --format rocketmq-rocksdb --layout v2), and one with enableLmq=true "
    f"reads {LMQ_FILE} alone"
)
_LMQ_NOTE = f"only a broker with enableLmq=true reads the file, and one with RocksDB does not: that takes {JSON_FILE}"
_NOTES: dict[Layout, str] = {
    "v1": "for a broker with storeType=defaultRocksDB; one with useSingleRocksDBForAllConfigs=true takes the store over at its "
    "next start, in place of what it has, and one with configManagerVersion=v2 never does (it needs --layout v2)",
    "v2": "for a broker with configManagerVersion=v2, which reads nothing else; its topics and groups are to be created anew",
}


def beside(path: Path) -> list[Path]:
    """The other places with offsets in the directory of `path`, if that is such a place by its name."""
    if path.name not in _WITH:
        return []
    others = (path.parent / name for name in _WITH if name != path.name)
    return [place for place in others if place.is_file() or (place / "CURRENT").is_file()]


def replaced(store: Path, by: Path) -> Literal["groups", "queues"] | None:
    """What a broker with `store` loses when it takes over the place `by` beside it; None if it does not take that over.

    Of all groups what is not in the other place, or only queues, of those groups and topics of which the other place has some.
    """
    if by.name == JSON_FILE and store.name in (V1_STORE, SINGLE_STORE):
        return "groups"
    return "queues" if by.name == V1_STORE and store.name == SINGLE_STORE else None


def in_use_instead(path: Path) -> str:
    """Says which place beside `path` was written later, so that a broker seems to use that one; empty if none was.

    A broker of any kind writes its place at least every 5 s while groups commit (flushConsumerOffsetInterval).
    """
    written = {place.name: _written_at(place) for place in beside(path)}
    newest = max(written, key=lambda name: written[name], default="")
    mine = _written_at(path)
    if not newest or written[newest] <= mine:
        return ""
    return (
        f"{newest} beside it was written later ({_shown(written[newest])}, this one {_shown(mine)}): "
        f"a broker {_WITH[newest]} keeps all its groups there, and {path.name} as it once was; import the one that is in use"
    )


def note_of(kind: Format, layout: Layout, *, lmq: bool) -> str:
    """Which broker reads what was written in this format. `lmq`: under the name of the file of a broker with enableLmq."""
    if kind is Format.ROCKETMQ_ROCKSDB:
        return _NOTES[layout]
    return _LMQ_NOTE if lmq else _JSON_NOTE


def _written_at(place: Path) -> float:
    """When a file, or a table, log or list of files of a store, was written last, in s; 0 if that cannot be seen.

    The other files of a store, as RocksDB's own LOG, are also written by who only looks at it.
    """
    parts = [place] if place.is_file() else [part for name in ("*.log", "*.sst", "MANIFEST-*") for part in place.glob(name)]
    try:
        return max((part.stat().st_mtime for part in parts), default=0.0)
    except OSError:  # gone meanwhile
        return 0.0


def _shown(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
