"""The tokens of people: files in which each line is a name and that person's token, or one line that is only a token.

Tokens are compared in constant time: every token of the files is compared with the one that was shown. Who shows wrong ones is
slowed down, each address for itself, and all together.
"""

import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from adapter.errors import ConfigError
from adapter.runtime.settings.secret_files import TOKEN_MIN, read_secret_lines

PEOPLE_MAX = 1_000  # of a file
FAILURES, FAILURES_OF_ALL = 5, 100  # within WINDOW_S
WINDOW_S = 60.0
PEERS_MAX = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


class Token(NamedTuple):
    """A person's token."""

    name: str
    token: str
    admin: bool


class Tokens:
    """The tokens of both files."""

    def __init__(self, tokens: tuple[Token, ...] = ()) -> None:
        self.tokens = tokens

    @classmethod
    def read(cls, view: Path | None, admin: Path | None) -> "Tokens":
        """Read the files. Raises ConfigError."""
        found = [
            *(_read(view, "access.view_token_file", admin=False) if view else ()),
            *(_read(admin, "access.admin_token_file", admin=True) if admin else ()),
        ]
        if len({one.token for one in found}) < len(found):
            raise ConfigError(
                "access.admin_token_file, access.view_token_file: a token occurs twice: then nobody knows whose it is"
            )
        return cls(tuple(found))

    def whose(self, shown: str) -> Token | None:
        """The person whose token this is. Takes as long for every answer."""
        digest = hashlib.sha256(shown.encode(errors="replace")).digest()
        found = None
        for one in self.tokens:
            if hmac.compare_digest(hashlib.sha256(one.token.encode()).digest(), digest):
                found = one
        return found


def _read(path: Path, name: str, *, admin: bool) -> list[Token]:
    lines = [line.split() for line in read_secret_lines(path, name)]
    found = []
    for at, words in enumerate(lines):
        where = f"{name}: {path}: line {at + 1}"
        if len(words) == 1 and len(lines) == 1:
            words.insert(0, "admin" if admin else "viewer")
        if len(words) != 2:  # noqa: PLR2004 - a name and a token
            raise ConfigError(f"{where}: is not a name and a token; only a file of one line may be a token alone")
        if not _NAME.fullmatch(words[0]):
            raise ConfigError(f"{where}: the name has other characters than letters, digits and . _ @ + -, or more than 64")
        if len(words[1]) < TOKEN_MIN:
            raise ConfigError(f"{where}: the token holds {len(words[1])} characters, it needs at least {TOKEN_MIN}")
        found.append(Token(words[0], words[1], admin))
    if not found:
        raise ConfigError(f"{name}: {path}: holds no token")
    if len(found) > PEOPLE_MAX:
        raise ConfigError(f"{name}: {path}: holds {len(found):,} tokens, over {PEOPLE_MAX:,}")
    return found


class Failures:
    """Counts logins that failed. At most `FAILURES` of one address, and `FAILURES_OF_ALL` of all, within `WINDOW_S`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: OrderedDict[str, list[float]] = OrderedDict()
        self._of_all: list[float] = []

    def wait_s(self, peer: str) -> float:
        """How long this address has to wait before it may try; 0: not at all."""
        now = self._clock()
        self._of_all = [at for at in self._of_all if at > now - WINDOW_S]
        mine = [at for at in self._times.get(peer, ()) if at > now - WINDOW_S]
        waits = [0.0]
        if len(mine) >= FAILURES:
            waits.append(mine[-FAILURES] + WINDOW_S - now)
        if len(self._of_all) >= FAILURES_OF_ALL:
            waits.append(self._of_all[-FAILURES_OF_ALL] + WINDOW_S - now)
        return max(waits)

    def note(self, peer: str) -> None:
        """A login of this address has failed."""
        now = self._clock()
        mine = [at for at in self._times.pop(peer, ()) if at > now - WINDOW_S]
        self._times[peer] = [*mine, now][-FAILURES:]
        self._of_all = [*self._of_all, now][-FAILURES_OF_ALL:]
        while len(self._times) > PEERS_MAX:
            self._times.popitem(last=False)
