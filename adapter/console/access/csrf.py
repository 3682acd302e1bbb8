"""Requests that change something come from our own pages, and from nowhere else: three checks, each of which is enough.

The session's cookie is SameSite=Strict. Every request that is not GET or HEAD has to say that it comes from this origin
(Sec-Fetch-Site or Origin), whatever route it is for. And every form brings a token of its session (`form_of`), or is not looked
at. Forms are read within limits: of their size, of the number of their fields, and of one file.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request

from adapter.console.access.sessions import Session, Sessions

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
FIELDS_MAX = 40
FORM_MAX = 512 * 1024  # bytes of a form without its file: 20,000 names of shards as a rule fit
FILE_MAX = 4 * 2**20
TOKEN_FIELD = "form_token"  # noqa: S105 - a name
_ENCODED, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"

FOREIGN = "this request does not come from a page of this console, and was not carried out"
NOT_OURS = (
    "this form is not of your present session: it is too old, or cookies are off. Nothing was changed. Go back, reload the page "
    "and fill it in again"
)


class Form(NamedTuple):
    """The fields of a form, each once, and the bytes of its file; None without one."""

    fields: Mapping[str, str]
    file: bytes | None = None

    def text(self, name: str) -> str:
        """A field as it was sent, with line ends of one sort; empty if it is missing."""
        return self.fields.get(name, "").replace("\r\n", "\n")


def is_foreign(connection: HTTPConnection, origins: Sequence[str], *, https: bool) -> bool:
    """Whether a request that is not safe comes from elsewhere, or does not say from where. `origins`: others that are ours."""
    headers = connection.headers
    if connection.scope["method"] in SAFE:
        return False
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if len(headers.getlist("origin")) > 1 or len(headers.getlist("sec-fetch-site")) > 1:
        return True
    if site is not None and site != "same-origin":
        return True
    if origin is None:
        return site is None
    scheme = "https" if https else "http"
    return origin.lower() not in {f"{scheme}://{headers.get('host', '').lower()}", *origins}


async def form_of(request: Request, sessions: Sessions, session: Session, name: str) -> Form:
    """Read the form of a session. Raises HTTPException: 403 if it is of no page of ours, 413 or 400 if it is no form we make."""
    form = await _read(request)
    if not sessions.form_is_ours(session, name, form.fields.get(TOKEN_FIELD, "")):
        raise HTTPException(403, NOT_OURS)
    return form


async def _read(request: Request) -> Form:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == _MULTIPART:
        return await _multipart(request)
    if kind != _ENCODED:
        raise HTTPException(415, "this is not a form")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > FORM_MAX:
            raise HTTPException(413, f"the form has more than {FORM_MAX:,} bytes; use a file")
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), errors="strict", max_num_fields=FIELDS_MAX
        )
    except ValueError:
        raise HTTPException(400, "the form cannot be read: it is no form in UTF-8, or has too many fields") from None
    return Form(_once(pairs))


async def _multipart(request: Request) -> Form:
    async with request.form(max_files=1, max_fields=FIELDS_MAX, max_part_size=FORM_MAX) as sent:
        file: bytes | None = None
        pairs = []
        for name, value in sent.multi_items():
            if isinstance(value, UploadFile):
                file = await value.read(FILE_MAX + 1)
                if len(file) > FILE_MAX:
                    raise HTTPException(413, f"the file has more than {FILE_MAX:,} bytes; use the command with --from-file")
                if not value.filename:
                    file = None
            else:
                pairs.append((name, value))
    return Form(_once(pairs), file)


def _once(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise HTTPException(400, "the form has a field twice")
    return found
