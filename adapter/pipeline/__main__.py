"""The entry point of `offset-adapter-spark`, of `python -m adapter.pipeline`, and the file for spark-submit."""

import os
import sys
from pathlib import Path

# gRPC's core reads this at import. Without it, it logs errors to standard error that the jobs report themselves.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# If this runs as a file, Python puts this directory first on the path, where our modules would shadow others of the same name.
if sys.path[:1] == [str(Path(__file__).parent)]:
    del sys.path[0]

from adapter.pipeline.cli import main

if __name__ == "__main__":
    main()
