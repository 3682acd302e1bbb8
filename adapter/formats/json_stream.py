"""A streaming parser for JSON and for fastjson's dialect: reads a file through a sliding window and returns its parts in order.

fastjson writes the keys of a map unquoted, also numbers and whole objects. Everything else must be JSON. Memory does not grow
with the file; the result does not depend on where the file is cut into chunks; anything that is not JSON raises NotReadableError
with the line. The caller has to take the value of every key that it is given.
"""

import codecs
import re
from collections.abc import Iterator
from typing import IO

from adapter.formats.rows import TEXT_SHOWN, NotReadableError, shortened

CHUNK_BYTES = 256 * 1024
STRING_MAX = 2**20  # characters
NUMBER_MAX = 1_000  # characters
KEY_MAX = 8 * 1024  # characters of an object used as a key; a MessageQueue with the longest names has half of that
DEPTH_MAX = 64  # levels of objects and arrays; RocketMQ's files have three
_AHEAD = 8 * 1024  # characters kept in the window for a pattern; more than a usual member has
_FOUND_SHOWN = 20
_BOM = "\ufeff"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")

# Only single characters are repeated possessively, groups within an atomic group: in Python 3.11.2 `(?:ab)?+` can match half.
SPACE = r"[ \t\n\r]*+"
_PLAIN = r'[^"\\\x00-\x1f]*+'
STRING = rf'"{_PLAIN}(?>(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{{4}}){_PLAIN})*)"'
NUMBER = r"-?+(?:0|[1-9][0-9]*+)(?>(?:\.[0-9]++)?)(?>(?:[eE][+-]?+[0-9]++)?)"
_KEY = f"(?:{STRING}|-?+[0-9]++)"
_SCALAR = f"(?:{STRING}|{NUMBER}|true|false|null)"
_FLAT_LIST = rf"\[{SPACE}(?>(?:{_SCALAR}{SPACE}(?:,{SPACE}{_SCALAR}{SPACE})*)?)\]"
_FLAT_PAIR = f"{_KEY}{SPACE}:{SPACE}{_SCALAR}{SPACE}"
FLAT_OBJECT = rf"\{{{SPACE}(?>(?:{_FLAT_PAIR}(?:,{SPACE}{_FLAT_PAIR})*)?)\}}"
_FLAT = f"(?:{_SCALAR}|{_FLAT_LIST}|{FLAT_OBJECT})"

_SPACES = re.compile(SPACE)
_STRINGS = re.compile(STRING)
_NUMBERS = re.compile(f"{NUMBER}(?![0-9.eE+-])")  # never match only the start of a number
_NUMBER_KEYS = re.compile("-?+[0-9]++")
_OBJECT_KEYS = re.compile(FLAT_OBJECT)
_WORDS = re.compile("true|false|null")
# Several simple members or items, each with the comma after it, to skip them at once.
_FLAT_MEMBERS = re.compile(f"(?>(?:{SPACE}{_KEY}{SPACE}:{SPACE}{_FLAT}{SPACE},)+)")
_FLAT_ITEMS = re.compile(f"(?>(?:{SPACE}{_FLAT}{SPACE},)+)")

Found = re.Match[str]
Pattern = re.Pattern[str]


class JsonStream:
    """A file that is parsed forwards only."""

    def __init__(self, file: IO[bytes], chunk_bytes: int = CHUNK_BYTES) -> None:
        self._file = file
        self._chunk_bytes = max(chunk_bytes, 3)  # at least a whole byte order mark
        self._ahead = min(_AHEAD, self._chunk_bytes)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._bytes = 0
        self._window = ""
        self._at = 0  # position in the window; everything before it is consumed
        self._dropped = 0  # characters before the window
        self._line, self._counted = 1, 0
        self._depth = 0
        self._ended = False
        self._failure: NotReadableError | None = None
        self.key_line = 1  # line of the key or match that was returned last

    @property
    def line(self) -> int:
        """The line, from 1, of the next character."""
        self._line += self._window.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def next(self) -> str:
        """The next character that is not white space; empty at the end. Raises NotReadableError."""
        while True:
            self._skip_spaces()
            if self._at < len(self._window):
                return self._window[self._at]
            if self._ended:
                return ""
            self._read()

    def members(self, whole: Pattern | None = None) -> Iterator[str | Found]:
        """The keys of the next object, as written. The caller takes each value. Raises NotReadableError.

        `whole` matches complete members with the comma after them: a match is returned instead of a key, and has no value to
        take.
        """
        return self._inside("{", "}", whole)

    def items(self, whole: Pattern | None = None) -> Iterator[str | Found]:
        """The items of the next array: an empty string for each value to take. `whole` as for `members`."""
        return self._inside("[", "]", whole)

    def value(self, longest: int = TEXT_SHOWN) -> str:
        """Take the next value; returns its first `longest` characters, and one more if it is longer.

        Raises NotReadableError.
        """
        first = self.next()
        if first not in {"{", "["}:
            return self._scalar(first)[: longest + 1]
        self._look_ahead(longest + 1)
        text = self._window[self._at : self._at + longest + 1]
        start = self._dropped + self._at
        self._skip()
        return text[: self._dropped + self._at - start]

    def end(self) -> None:
        """Raises NotReadableError unless the file ends here."""
        if self.next():
            raise self._not_json("the end of the file")

    def _inside(self, opening: str, closing: str, whole: Pattern | None) -> Iterator[str | Found]:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise NotReadableError(f"is not JSON: line {self.line}: is nested more than {DEPTH_MAX} levels deep")
        self._take(opening)
        if self.next() == closing:
            self._take(closing)
            self._depth -= 1
            return
        while True:
            while whole and (found := self._match(whole)):
                yield found
            yield self._key() if opening == "{" else ""
            if self.next() == closing:
                self._take(closing)
                self._depth -= 1
                return
            self._take(",", f", or {closing}")

    def _key(self) -> str:
        found = self.next()
        self.key_line = self.line
        if found == '"':
            key = self._scan(_STRINGS, STRING_MAX, "a key")
        elif found == "{":
            key = self._scan(_OBJECT_KEYS, KEY_MAX, "a key")
        else:
            key = self._scan(_NUMBER_KEYS, NUMBER_MAX, "a key")
        self._take(":")
        return key

    def _skip(self) -> None:
        """Take the next value without keeping it."""
        found = self.next()
        if found == "{":
            inside = self.members(_FLAT_MEMBERS)
        elif found == "[":
            inside = self.items(_FLAT_ITEMS)
        else:
            self._scalar(found)
            return
        for each in inside:
            if isinstance(each, str):
                self._skip()

    def _scalar(self, found: str) -> str:
        if found == '"':
            return self._scan(_STRINGS, STRING_MAX, "a value")
        if found in "tfn":
            return self._scan(_WORDS, len("false"), "a value")
        return self._scan(_NUMBERS, NUMBER_MAX, "a value")

    def _take(self, mark: str, wanted: str = "") -> None:
        if self.next() != mark:
            raise self._not_json(wanted or mark)
        self._at += 1

    def _scan(self, pattern: Pattern, longest: int, wanted: str) -> str:
        """Take and return the next token. A token that reaches the end of the window may continue after it."""
        while True:
            found = pattern.match(self._window, self._at)
            end = found.end() if found else len(self._window)
            if end - self._at > longest:
                raise self._too_long(longest) if found else self._not_json(wanted)
            if found and (self._ended or end < len(self._window)):
                self._at = end
                return found[0]
            if self._ended:
                raise self._not_json(wanted)
            self._read()

    def _match(self, whole: Pattern) -> Found | None:
        if len(self._window) - self._at < self._ahead:
            self._look_ahead(self._ahead)
        self._skip_spaces()
        self.key_line = self.line
        found = whole.match(self._window, self._at)
        if found:
            self._at = found.end()
        return found

    def _skip_spaces(self) -> None:
        found = _SPACES.match(self._window, self._at)
        if found:
            self._at = found.end()

    def _look_ahead(self, size: int) -> None:
        while len(self._window) - self._at < size and not self._ended and not self._failure:
            self._read()

    def _read(self) -> None:
        """Replace the consumed part of the window by another chunk. Invalid UTF-8 fails only when parsing reaches it."""
        if self._failure:
            raise self._failure
        at_line = self.line
        try:
            data = self._file.read(self._chunk_bytes)
        except OSError as error:
            raise NotReadableError(f"cannot be read: {error.strerror}") from error
        self._window = self._window[self._at :]
        self._dropped += self._at
        self._at = self._counted = 0
        pending = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            text = error.object[: error.start].decode()
            line = at_line + (self._window + text).count("\n")
            self._failure = _not_utf8(error, self._bytes - pending, line)
        if not self._bytes:
            text = text.removeprefix(_BOM)
        self._window += text
        self._bytes += len(data)
        self._ended = not data and not self._failure

    def _not_json(self, wanted: str) -> NotReadableError:
        self._look_ahead(_FOUND_SHOWN + 1)
        text = self._window[self._at : self._at + _FOUND_SHOWN + 1]
        if not text:
            return NotReadableError(f"is not JSON, or torn: line {self.line}: ends where {wanted} should stand")
        return NotReadableError(
            f"is not JSON, or torn: line {self.line}: {shortened(text, _FOUND_SHOWN)!r} stands where {wanted} should"
        )

    def _too_long(self, longest: int) -> NotReadableError:
        return NotReadableError(f"is not JSON as it should be: line {self.line}: something there has over {longest:,} characters")


def _not_utf8(error: UnicodeDecodeError, before: int, line: int) -> NotReadableError:
    if not before and error.object.startswith(_UTF16):
        return NotReadableError("is UTF-16; save it as UTF-8")
    return NotReadableError(f"is not UTF-8 at byte {before + error.start + 1}, in line {line}")
