"""The entry point of `offset-adapter-spark`, of `python -m adapter.pipeline`, and the file for spark-submit."""

import os
import sys
from pathlib import Path

# gRPC's core would print lines of its own for what we report ourselves; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Run as a file, Python would find our modules by their last names, before those of others.
if sys.path[:1] == [str(Path(__file__).parent)]:
    del sys.path[0]

from adapter.pipeline.cli import main

if __name__ == "__main__":
    main()
