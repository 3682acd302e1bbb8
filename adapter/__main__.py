"""The entry point of `offset-adapter` and of `python -m adapter`."""

import atexit
import gc
import os
import sys
import threading
from typing import NoReturn

# A server takes SIGHUP as "read the settings again". It may be sent before the server gets there, which takes a second: the
# default action would end the process. The settings are read after this, and compared with the file once more later.
# `meta` followed by anything but --config is another command, which ends with its terminal.
if sys.argv[1:2] == ["serve"] or (sys.argv[1:2] == ["meta"] and "".join(sys.argv[2:3]).partition("=")[0] in {"", "--config"}):
    import signal

    signal.signal(signal.SIGHUP, signal.SIG_IGN)

# gRPC's core would print lines of its own for what we report ourselves; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def main() -> None:
    """Run the command. What is imported for it is no garbage: looking for some would take a tenth of a short command's CPU."""
    gc.disable()  # until the command begins (`adapter.cli.lazy`)
    from adapter.cli.main import main as run  # noqa: PLC0415 - behind what stands above

    try:
        run()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            leave(ended.code or 0)
        raise


def leave(code: int) -> NoReturn:
    """End as Python does, but without freeing each object, which would take a tenth of a short command's CPU."""
    threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001 - no public call does this, nor the next
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as Python does
    os._exit(code)


if __name__ == "__main__":
    main()
