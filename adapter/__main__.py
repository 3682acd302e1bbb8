"""The entry point of `offset-adapter` and of `python -m adapter`."""

import os

# gRPC's core would print lines of its own for what we report ourselves; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from adapter.cli.main import main

if __name__ == "__main__":
    main()
