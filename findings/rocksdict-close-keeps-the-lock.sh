#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
ROCKSDICT=0.3.29
pypi "rocksdict==$ROCKSDICT"

statement <<TEXT
rocksdict $ROCKSDICT (RocksDB for Python): close() keeps the store's lock while the handle of a column family is alive.

Most expect: Rdict.close() closes the store; afterwards it can be opened again, here or by another process.
What happens: close() returns, and the store stays open, with its LOCK, until the handle that create_column_family() returned is
  closed as well. An open meanwhile raises.
Why it matters: a process that closes its offsets to hand the directory over (a restore, a move, a successor) still holds it, for as
  long as some object keeps a handle. Close the handles first.
TEXT

cat >"$WORK/try.py" <<'PY'
import subprocess
import sys

from rocksdict import Options, Rdict

path = sys.argv[1]
OPEN = "import sys; from rocksdict import Options, Rdict; Rdict(sys.argv[1], Options(raw_mode=True)).close()"


def others() -> str:
    done = subprocess.run([sys.executable, "-c", OPEN, path], capture_output=True, text=True, check=False)
    return "opens it" if done.returncode == 0 else "is refused: lock" if "LOCK" in done.stderr else done.stderr


store = Rdict(path, Options(raw_mode=True))
family = store.create_column_family("offsets", Options(raw_mode=True))
family[b"g"] = b"1"
store.close()
print("store closed, handle of the column family alive: another process", others())
family.close()
print("handle closed: another process", others())
PY
"$WORK/venv/bin/python" "$WORK/try.py" "$WORK/store" >"$SEEN"

verdict <<'STATED'
store closed, handle of the column family alive: another process is refused: lock
handle closed: another process opens it
STATED
