"""Sessions of people: a signed cookie, which says who somebody is and until when, and nothing on the server but who logged out.

A session begins with a new id at each login. It ends at logout, after its time, when the key changes (each start, unless a file
has it), and when the token that it began with is no longer in its file. The id of a session also is what forms are signed with.
"""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from itsdangerous import BadData, URLSafeSerializer

ID_BYTES = 16
ENDED_MAX = 10_000  # sessions that were logged out, and whose time is not over
COOKIE_MAX = 2_048  # characters
FORM_MINUTES = 60  # of a session in which nobody has logged in yet


class Session(NamedTuple):
    """One session. `proof` is a digest of the token that it began with; `name` is empty before a login. Times: Unix seconds."""

    id: str
    name: str
    admin: bool
    proof: str
    began_s: int
    until_s: int


class Sessions:
    """Makes, reads and ends sessions."""

    def __init__(self, key: bytes, minutes: int, clock: Callable[[], float]) -> None:
        self._key = key
        self._minutes = minutes
        self._clock = clock
        self._serializer = URLSafeSerializer(key, salt="console session", signer_kwargs={"digest_method": hashlib.sha256})
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._none_before_s = 0

    def begin(self, name: str = "", *, admin: bool = False, proof: str = "") -> Session:
        """A new session with an id of its own."""
        now = int(self._clock())
        minutes = self._minutes if name else min(FORM_MINUTES, self._minutes)
        return Session(secrets.token_urlsafe(ID_BYTES), name, admin, proof, now, now + 60 * minutes)

    def cookie_of(self, session: Session) -> str:
        """The value of its cookie."""
        return str(self._serializer.dumps(list(session)))

    def read(self, cookie: str) -> Session | None:
        """The session of a cookie; None if it is not one of ours, or is over."""
        if not cookie or len(cookie) > COOKIE_MAX:
            return None
        try:
            values = self._serializer.loads(cookie)
        except BadData:
            return None
        session = Session(*values)
        now = self._clock()
        over = session.until_s <= now or session.began_s < self._none_before_s or session.id in self._ended
        return None if over else session

    def end(self, session: Session) -> None:
        """Accept its cookie no more."""
        now = int(self._clock())
        while self._ended and next(iter(self._ended.values())) <= now:
            self._ended.popitem(last=False)
        self._ended[session.id] = session.until_s
        if len(self._ended) > ENDED_MAX:
            # Rather all of them than one that somebody has ended.
            self._ended.clear()
            self._none_before_s = now + 1

    def form_token(self, session: Session, name: str) -> str:
        """What a form of this session brings, for the person of this name: a proxy may name another one with the same cookie."""
        return self._digest(f"form\0{session.id}\0{name}")

    def form_is_ours(self, session: Session, name: str, token: str) -> bool:
        """Whether a form came from a page of this session and person."""
        return hmac.compare_digest(self.form_token(session, name).encode(), token.encode(errors="replace"))

    def proof_of(self, token: str) -> str:
        """A digest of a token, to see later that it still is in its file; of no use without the key."""
        return self._digest(f"token\0{token}")

    def _digest(self, text: str) -> str:
        return hmac.new(self._key, text.encode(errors="replace"), hashlib.sha256).hexdigest()
