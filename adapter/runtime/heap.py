"""Memory that is free, and that the C library keeps for later: it stays with the process unless it is asked for it."""

import ctypes


def give_back() -> None:
    """Give free memory back to the system. Takes a millisecond for each 100 MB or so, without the GIL; musl keeps little."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
