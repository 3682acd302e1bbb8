"""Directories and their rights, the kind of their file system, the time of a sync, and free space. Nothing is left behind."""

import errno
import os
import re
import stat
import statistics
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from adapter.cli.doctor.findings import FAIL, OK, WARN, Finding
from adapter.runtime.durable.files import user_name
from adapter.runtime.wording import counted

SYNCS, SYNC_BYTES, SYNCS_S = 20, 4_096, 2.0  # how many are measured, each of how many bytes, in how many seconds at most
SLOW_SYNC_S = 0.01  # etcd's bound for the disk of a log: https://etcd.io/docs/v3.5/faq/
LOW_BYTES, NO_BYTES = 2**30, 128 * 2**20  # below these: a warning; a failure, since a compaction may need more
LOW_FILES = 1_000
ENTRIES_MAX = 10_000  # of a store whose owners are looked at

VOLATILE = {"tmpfs": "is memory: a reboot empties it", "ramfs": "is memory: a reboot empties it"}
OF_CONTAINER = {"overlay", "aufs"}
REMOTE = re.compile(r"nfs\d*|cifs|smb\d*|9p|virtiofs|glusterfs|lustre|afs|fuse(\..*)?")


class Mount(NamedTuple):
    """A line of /proc/self/mountinfo: where a file system is mounted, its kind, and its options."""

    point: str
    kind: str
    options: frozenset[str]


def directory(name: str, setting: str, path: Path) -> Iterator[Finding]:
    """Whether this user can use a directory, or create it; and whether the files in it belong to its owner."""
    path = path.absolute()
    there = nearest(path)
    try:
        status = there.stat()
        if not stat.S_ISDIR(status.st_mode):
            yield Finding(name, FAIL, f"{there} is not a directory", f"name another one in {setting}")
            return
        if not os.access(there, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            yield Finding(
                name,
                FAIL,
                f"{there} ({_rights(status)}) is closed to {user_name(os.geteuid())}",
                f"as root: chown -R {user_name(os.geteuid())} {there}; or run this as the user of the process",
            )
            return
        if there != path:
            yield Finding(
                name, OK, f"{path} is not there yet; {there} ({_rights(status)}) lets {user_name(os.geteuid())} create it"
            )
            return
        strangers = _strangers(path, status.st_uid)
    except OSError as error:
        yield Finding(name, FAIL, f"{error.filename or there}: {error.strerror}", f"look at the rights of {there} and above")
        return
    if strangers:
        yield Finding(
            name,
            FAIL,
            f"{path} belongs to {user_name(status.st_uid)}, and {strangers[0]} in it to {user_name(strangers[0].lstat().st_uid)}",
            f"as root: chown -R {user_name(status.st_uid)} {path}",
        )
        return
    others = stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    advice = f"chmod 0700 {path}: others may change or delete what is in it" if others else _as_root(status)
    yield Finding(name, WARN if others else OK, f"{path} ({_rights(status)})", advice)


def file_system(name: str, setting: str, path: Path) -> Iterator[Finding]:
    """The kind of the file system that holds a directory: whether it outlives a reboot, and whether it is a disk's."""
    mount = mount_of(
        nearest(path.absolute()).resolve(), Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    )
    if mount is None:
        yield Finding(name, WARN, "the kernel does not tell which file system it is", f"look with: df -T {path}")
        return
    seen = f"{mount.kind} at {mount.point}"
    if "ro" in mount.options:
        yield Finding(name, FAIL, f"{seen}, read-only", f"mount it read-write, or name another directory in {setting}")
    elif mount.kind in VOLATILE:
        yield Finding(name, WARN, f"{seen}, which {VOLATILE[mount.kind]}", f"name a directory on a disk in {setting}")
    elif mount.kind in OF_CONTAINER:
        yield Finding(name, WARN, f"{seen}: it goes with its container", f"mount a volume at {path}")
    elif REMOTE.fullmatch(mount.kind):
        advice = f"whether a sync reaches a disk, and a lock holds, is up to the server: name a local disk in {setting}"
        yield Finding(name, WARN, f"{seen}, over a network or another program", advice)
    elif mount.options & {"nobarrier", "barrier=0"}:
        yield Finding(name, WARN, f"{seen}, without barriers", "mount it with them, unless the disk's cache has a battery")
    else:
        yield Finding(name, OK, seen)


def sync_time(name: str, path: Path) -> Iterator[Finding]:
    """How long the disk needs to make 4 KiB durable, in a file without a name (O_TMPFILE), gone when it closes."""
    there = nearest(path.absolute())
    try:
        took = sync_times(there)
    except OSError as error:
        if error.errno in {errno.EOPNOTSUPP, errno.EISDIR}:
            yield Finding(
                name,
                WARN,
                f"not measured: the file system of {there} has no files without a name, and one with a name is not made here",
                f"measure it: fio --rw=write --bs=4k --fdatasync=1 --size=1m --name=sync --directory={there}",
            )
        else:
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            advice = "free some space" if full else "a process could not write there either: look at its rights and at dmesg"
            yield Finding(name, FAIL, f"{there}: {error.strerror}", advice)
        return
    middle, worst = statistics.median(took), max(took)
    seen = f"fdatasync of 4 KiB in {there}: {middle * 1000:.2f} ms in the middle, {worst * 1000:.1f} ms at most, of {len(took)}"
    if middle > SLOW_SYNC_S:
        yield Finding(name, WARN, seen, 'a faster disk; with wal_sync = "always" each batch of commits waits that long')
    else:
        yield Finding(name, OK, seen)


def sync_times(there: Path) -> list[float]:
    """Seconds of each sync, at least one. Raises OSError."""
    took: list[float] = []
    data = b"\xa5" * SYNC_BYTES
    file = os.open(there, os.O_TMPFILE | os.O_WRONLY, 0o600)
    try:
        until = time.monotonic() + SYNCS_S
        while not took or (len(took) < SYNCS and time.monotonic() < until):
            os.write(file, data)
            begun = time.perf_counter()
            os.fdatasync(file)
            took.append(time.perf_counter() - begun)
    finally:
        os.close(file)
    return took


def free_space(name: str, path: Path, journal_max_bytes: int = 0) -> Iterator[Finding]:
    """Free bytes and files of a file system; a directory that is a journal may grow to `journal_max_bytes`."""
    there = nearest(path.absolute())
    status = os.statvfs(there)
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    seen = f"{_size(free)} of {_size(total)} free in {there}"
    used = sum(file.stat().st_size for file in path.glob("*") if file.is_file()) if journal_max_bytes else 0
    wanted_bytes = journal_max_bytes - used
    files_low = bool(status.f_files) and status.f_favail < LOW_FILES
    if status.f_files:
        seen += f", {counted(status.f_favail, 'file')} left"
    if free < NO_BYTES:
        yield Finding(name, FAIL, seen, "free some space: a full disk refuses commits")
    elif free < LOW_BYTES or files_low:
        yield Finding(name, WARN, seen, "free some space or files: a full disk refuses commits")
    elif free < wanted_bytes:
        advice = f"lower journal.disk_max_bytes, which still allows {_size(wanted_bytes)}, or give the journal a larger disk"
        yield Finding(name, WARN, seen, advice)
    else:
        yield Finding(name, OK, seen)


def nearest(path: Path) -> Path:
    """The path, or the nearest directory above it that exists, or that cannot be looked at."""
    for found in (path, *path.parents):
        try:
            found.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            pass
        return found
    return path


def mount_of(path: Path, mountinfo: str) -> Mount | None:
    """The mount that holds a resolved path, by the text of mountinfo (man 5 proc); of mounts over each other the last one."""
    best: Mount | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, *more) = before.split(" "), after.split(" ") if after else [""]
        if len(fields) < 6:  # noqa: PLR2004 - up to the options
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        if path.is_relative_to(point) and (best is None or len(point) >= len(best.point)):
            best = Mount(point, kind, frozenset(fields[5].split(",")) | frozenset(more[-1].split(",") if more else ()))
    return best


def _strangers(path: Path, owner: int) -> list[Path]:
    """The first entry of a store, two levels deep, that belongs to another user than `owner`."""
    entries = islice((entry for pattern in ("*", "*/*") for entry in path.glob(pattern)), ENTRIES_MAX)
    for entry in entries:
        try:
            if entry.lstat().st_uid != owner:
                return [entry]
        except FileNotFoundError:  # the process that runs has deleted it
            continue
    return []


def _as_root(status: os.stat_result) -> str:
    if os.geteuid() == 0 and status.st_uid != 0:
        return f"root may do everything: to check what {user_name(status.st_uid)} may do, run this as {user_name(status.st_uid)}"
    return ""


def _rights(status: os.stat_result) -> str:
    return f"{stat.filemode(status.st_mode)} {user_name(status.st_uid)}"


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
