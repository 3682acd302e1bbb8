"""The entry point of `offset-adapter` and of `python -m adapter`."""

import gc
import os
import signal
import sys

# A server takes SIGHUP as "read the settings again". It may be sent before the server gets there, which takes a second: the
# default action would end the process. The settings are read after this, and compared with the file once more later.
# `meta` followed by anything but --config is another command, which ends with its terminal.
if sys.argv[1:2] == ["serve"] or (sys.argv[1:2] == ["meta"] and "".join(sys.argv[2:3]).partition("=")[0] in {"", "--config"}):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

# gRPC's core would print lines of its own for what we report ourselves; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def main() -> None:
    """Run the command. What is imported for it is no garbage: looking for some would take a tenth of a short command's CPU."""
    gc.disable()  # until the command begins (`adapter.cli.lazy`)
    from adapter.cli.main import main as run  # noqa: PLC0415 - behind what stands above

    run()


if __name__ == "__main__":
    main()
