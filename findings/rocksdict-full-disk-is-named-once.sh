#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
ROCKSDICT=0.3.29
pypi "rocksdict==$ROCKSDICT"

statement <<TEXT
rocksdict $ROCKSDICT (RocksDB 9.8.4 for Python): a full disk is named once; a sync later every error is "Writer has previous error",
and no space that comes back ends it.

Most expect: while a disk is full each write raises "No space left on device"; with space again writes succeed, as RocksDB says of
  its recovery from a full disk.
What happens: writes name the full disk until the first flush_wal(True). From then on every write, sync and close raises
  "IO error: Writer has previous error." With space again they still do, until the store is closed and opened again: then what was
  written before the full disk is there.
Why it matters: who tells a full disk by its text takes it for a broken store; who waits for space waits for ever, and its consumers'
  commits are refused though the disk has room. Ask the file system, and open the store again.
TEXT

DISK="$WORK/disk"
mkdir "$DISK"
mount -t tmpfs -o size=8m tmpfs "$DISK" 2>"$WORK/mount.log" || broken "a tmpfs of 8 MB cannot be mounted here: root is needed"
trap 'code=$?; set +e; umount "$DISK"; (exit "$code"); finish' EXIT

cat >"$WORK/try.py" <<'PY'
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rocksdict import Options, Rdict

disk = Path(sys.argv[1])


def told(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return str(error).partition(": While")[0]
    return "done"


store = Rdict(str(disk / "store"), Options(raw_mode=True))
store[b"before"] = b"1"
filler = disk / "filler"
with filler.open("wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError as error:
        print("the disk:", error.strerror)


def write() -> None:
    store[b"offset"] = bytes(5000)  # more than what is left of a page


print("a write:", told(write))
print("a write:", told(write))
print("a sync:", told(lambda: store.flush_wal(True)))
print("a write:", told(write))
filler.unlink()
time.sleep(10)
print("10 s after there is space, a write:", told(write))
print("close:", told(store.close).partition(";")[0])
again = Rdict(str(disk / "store"), Options(raw_mode=True))
print("opened again: what was written before is", again.get(b"before"), "and a write:", told(lambda: again.put(b"offset", b"1")))
PY
"$WORK/venv/bin/python" "$WORK/try.py" "$DISK" >"$SEEN"

verdict <<'STATED'
the disk: No space left on device
a write: IO error: No space left on device
a write: IO error: No space left on device
a sync: IO error: Writer has previous error.
a write: IO error: Writer has previous error.
10 s after there is space, a write: IO error: Writer has previous error.
close: IO error: Writer has previous error.
opened again: what was written before is b'1' and a write: done
STATED
