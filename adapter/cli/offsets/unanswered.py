"""Shifts that were sent and not answered, with the IDs by which the Meta Service remembers them: a file for each.

The file is written before the first request. So a command that is run again, after a kill at any moment, finishes what the first
run began, and shifts nothing twice.
"""

import base64
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from adapter.errors import InvalidInputError
from adapter.rpc import offsets_pb
from adapter.runtime.durable import files


class Unanswered(NamedTuple):
    """A shift that was sent to an adapter at `address`, and its requests with their IDs. `sent_ms` is Unix time."""

    address: str
    sent_ms: int
    requests: list[offsets_pb.ResetOffsetsRequest]


def path_of(words: Iterable[str]) -> Path:
    """The file of a shift, by all that it was asked for with, but for the address of the adapter: another one may finish it."""
    name = hashlib.sha256(json.dumps([*words]).encode()).hexdigest()[:16]
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111 - Path's raises without a home
    return Path(state) / "offset-adapter" / "changes" / f"{name}.json"


def find(path: Path) -> Unanswered | None:
    """What the file has; None if there is none. Raises InvalidInputError for one that cannot be read."""
    try:
        content = json.loads(path.read_text())
        requests = [offsets_pb.ResetOffsetsRequest.FromString(base64.b64decode(text)) for text in content["requests"]]
        return Unanswered(content["address"], content["sent_ms"], requests)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"{path}: has the IDs of a shift that was not answered, and cannot be read: {error}; look at the offsets (`groups "
            "describe`), and remove the file"
        ) from error


def give_ids(requests: Iterable[offsets_pb.ResetOffsetsRequest]) -> None:
    """Give each request an ID of its own."""
    now_ms = time.time_ns() // 1_000_000
    for request in requests:
        request.change_id = f"{now_ms:013}-{secrets.token_hex(8)}"


def take_ids(requests: Iterable[offsets_pb.ResetOffsetsRequest]) -> None:
    """Remove the IDs: nobody would remember them."""
    for request in requests:
        request.change_id = ""


def keep(path: Path, address: str, requests: Sequence[offsets_pb.ResetOffsetsRequest]) -> None:
    """Write the file, synced. Raises InvalidInputError."""
    content = {
        "address": address,
        "sent_ms": time.time_ns() // 1_000_000,
        "requests": [base64.b64encode(request.SerializeToString()).decode() for request in requests],
    }
    try:
        _write(path, json.dumps(content).encode())
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{error}; the ID of the shift is kept there until it is answered, so that it can be repeated: set XDG_STATE_HOME to "
            "a directory where files stay. Nothing was changed"
        ) from error


def _write(path: Path, data: bytes) -> None:
    if not path.is_absolute():
        raise InvalidInputError("there is no home directory")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"{path.parent}: cannot be made: {error.strerror}") from error
    files.write(str(path), data)


def forget(path: Path) -> None:
    """Remove the file: all is answered."""
    path.unlink(missing_ok=True)
