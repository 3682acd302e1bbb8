"""Memory that is free, and that the C library or Python keeps for later: it stays with the process unless it is asked for."""

import ctypes
import gc
import sys


def give_back() -> None:
    """Give free memory back to the system. Takes a millisecond for each 100 MB or so, without the GIL; musl keeps little."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def collect() -> None:
    """Free what Python keeps of a burst: cycles of objects, freed tuples and the like, and names in its cache of attributes.

    Python takes memory in pieces of 1 MiB, and gives one back when nothing is left in it; each of these may keep a piece. Takes
    2 to 5 ms while little is in memory. Does nothing in a process that has not frozen what its start made, as
    `runtime.process` does: to look at all that as well takes 50 ms.
    """
    if not gc.get_freeze_count():
        return
    gc.collect()
    # A name that C code looks up (numpy's does, for each call of some methods) is a string of its own each time, and the cache
    # keeps the last 4,096.
    clear = getattr(sys, "_clear_type_cache", None)
    if clear is not None:
        clear()
