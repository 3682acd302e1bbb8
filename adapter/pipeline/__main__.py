"""The entry point of `offset-adapter-spark`, of `python -m adapter.pipeline`, and the file for spark-submit."""

import os
import sys
from pathlib import Path

# gRPC's core reads this at import. Without it, it logs errors to standard error that the jobs report themselves.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# If this runs as a file, Python puts this directory first on the path, where our modules would shadow others of the same name.
if sys.path[:1] == [str(Path(__file__).parent)]:
    del sys.path[0]

try:
    from adapter.pipeline.cli import main
except ModuleNotFoundError as error:  # spark-submit runs `python3` unless it is told another one
    here = (home / "bin" / "python" for home in Path(__file__).parents)
    python = next((str(path) for path in here if path.exists()), "the Python in which offset-adapter is installed")
    sys.stderr.write(f"error: {sys.executable} has no module {error.name}: set PYSPARK_PYTHON to {python}\n")
    sys.exit(2)
except KeyboardInterrupt:
    sys.stderr.write("interrupted\n")
    sys.exit(130)

if __name__ == "__main__":
    main()
