"""Only one driver at a time may write an output directory. A second one is refused; a dead one does not block the next.

In a directory: a lock of the operating system on the file `lock`. It ends with the process, however that ends. On a shared file
system it holds between machines as far as that supports `flock` (NFS 4 does).

Behind a URL: the object `lease.json`, written anew every RENEW_S. A driver that finds one waits until it changes (then it is
refused) or has stood still for EXPIRE_S (then it takes it). Object stores have no lock, so this cannot promise everything: of two
drivers that start within the same second both may begin, and one that stood still for longer than EXPIRE_S may still write a
manifest in the moment in which it wakes up. Each looks at the lease before each manifest, and stops if it is not its own.
"""

import fcntl
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import IO

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from adapter.errors import AdapterError, ConfigError
from adapter.pipeline.places import Place, unusable

FIELD = "[lag] output"
RENEW_S = 5.0
EXPIRE_S = 30.0
_POLL_S = 1.0
# Some storages show a file while it is being written: it is read again, after far longer than that takes.
_READS = Retrying(retry=retry_if_exception_type(ValueError), stop=stop_after_attempt(3), wait=wait_fixed(0.05), reraise=True)

# Raises AdapterError if the lock is lost.
Check = Callable[[], None]


@contextmanager
def only_driver(output: Place, renew_s: float = RENEW_S, expire_s: float = EXPIRE_S) -> Iterator[Check]:
    """Hold the lock of an output directory. Raises ConfigError if another driver has it, or the directory cannot be written."""
    with _leased(output, renew_s, expire_s) if output.is_remote else _locked(output) as check:
        yield check


@contextmanager
def _locked(output: Place) -> Iterator[Check]:
    try:
        output.make()
        file = (output / "lock").path.open("a+", encoding="utf-8")
    except OSError as error:
        raise unusable(output, FIELD, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _refused(output, _holder(file)) from error
        file.truncate(0)
        file.write(_myself())
        file.flush()
        yield lambda: None


def _holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read() or "another process"


class _Lease:
    """The lease of one driver behind a URL."""

    def __init__(self, output: Place) -> None:
        self._output, self._place = output, output / "lease.json"
        self._id = secrets.token_hex(8)
        self._count = 0

    def take(self, expire_s: float, stop: Event) -> None:
        """Take it when nobody renews it any more. Raises ConfigError if somebody does."""
        found = self._read()
        waited = 0.0
        while found and waited < expire_s:
            stop.wait(min(_POLL_S, expire_s))
            waited += min(_POLL_S, expire_s)
            now = self._read()
            if now and now != found:
                raise _refused(self._output, str(now.get("holder")))
            found = now
        self.renew()

    def renew(self) -> None:
        """Write it anew."""
        self._count += 1
        self._place.write(json.dumps({"id": self._id, "holder": _myself(), "count": self._count}).encode())

    def check(self) -> None:
        """Raise AdapterError if another driver has taken it."""
        found = self._read()
        if found is None or found.get("id") != self._id:
            holder = found.get("holder") if found else "somebody, who deleted lease.json"
            raise AdapterError(f"{self._output}: was taken over by {holder}; this one stops. One driver may write it at a time")

    def give_back(self) -> None:
        """Delete it, if it is still its own."""
        found = self._read()
        if found and found.get("id") == self._id:
            self._place.delete()

    def _read(self) -> dict[str, object] | None:
        try:
            content = _READS(lambda: json.loads(self._place.read()))
        except FileNotFoundError:
            return None
        except ValueError:
            content = None
        return content if isinstance(content, dict) else {"holder": "somebody whose lease cannot be read"}


@contextmanager
def _leased(output: Place, renew_s: float, expire_s: float) -> Iterator[Check]:
    lease, stop = _Lease(output), Event()
    try:
        lease.take(expire_s, stop)
    except OSError as error:
        raise unusable(output, FIELD, error) from error

    def renew() -> None:
        while not stop.wait(renew_s):
            try:
                lease.check()
                lease.renew()
            except OSError:
                continue  # the next time; a batch that cannot reach the storage fails by itself
            except AdapterError:
                return  # the next batch finds out

    thread = Thread(target=renew, name="lag-lease", daemon=True)
    thread.start()
    try:
        yield lease.check
    finally:
        stop.set()
        thread.join()
        lease.give_back()


def _myself() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _refused(output: Place, holder: str) -> ConfigError:
    return ConfigError(
        f"{FIELD} = '{output}': is being written by {holder}; stop that job, or set another output: one job may write a "
        "directory at a time"
    )
