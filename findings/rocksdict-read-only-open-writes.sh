#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
ROCKSDICT=0.3.29
pypi "rocksdict==$ROCKSDICT"

statement <<TEXT
rocksdict $ROCKSDICT (RocksDB for Python): a read-only open writes into the store's directory, and may change how it is opened.

Most expect: an open with AccessType.read_only() changes nothing on disk.
What happens: it writes rocksdict-config.json anew, from the options of this call; it makes the file where it is missing (in a store
  of another program). After a read-only open with another raw_mode, an open without options, which takes them from this file
  and worked before, raises.
Why it matters: a look at the offsets of a running broker, of a backup or of a snapshot leaves traces in it. A look with wrong
  options breaks the next start of an owner that relies on the file. Look at a copy.
TEXT

cat >"$WORK/try.py" <<'PY'
import sys
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

path = Path(sys.argv[1])
config = path / "rocksdict-config.json"


def files() -> dict[str, int]:
    return {each.name: each.stat().st_mtime_ns for each in path.iterdir()}


def look(raw_mode: bool) -> None:
    before = files()
    Rdict(str(path), Options(raw_mode=raw_mode), access_type=AccessType.read_only()).close()
    after = files()
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    print(f"a read-only open with raw_mode={raw_mode}: written", *changed, config.read_text())


def open_without_options() -> None:
    try:
        Rdict(str(path)).close()
        print("an open without options: works")
    except Exception as error:
        print("an open without options: raises,", str(error).replace(str(path), "STORE"))


store = Rdict(str(path), Options(raw_mode=True))
store[b"g"] = b"1"
store.close()
look(raw_mode=True)
config.unlink()
look(raw_mode=True)
open_without_options()
look(raw_mode=False)
open_without_options()
PY
"$WORK/venv/bin/python" "$WORK/try.py" "$WORK/store" >"$SEEN"

verdict <<'STATED'
a read-only open with raw_mode=True: written rocksdict-config.json {"raw_mode":true,"prefix_extractors":{}}
a read-only open with raw_mode=True: written rocksdict-config.json {"raw_mode":true,"prefix_extractors":{}}
an open without options: works
a read-only open with raw_mode=False: written rocksdict-config.json {"raw_mode":false,"prefix_extractors":{}}
an open without options: raises, Invalid argument: rocksdict: does not match existing comparator leveldb.BytewiseComparator
STATED
