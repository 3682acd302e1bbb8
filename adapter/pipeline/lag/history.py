"""The history of the lag job: Delta tables of `groups`, `rewinds` and `rejects`, for longer than the job keeps its batches.

    <delta>/{groups,rewinds,rejects}    with the columns `date` (the partition), `stream` and `batch`

A batch is appended after its manifest is written and before Spark notes it, so that a crash in between repeats it. A table
notes the number of the stream's newest batch in the commit that has its rows, as a transaction of Delta: so a batch that is
repeated is found there, and its rows are neither lost nor doubled. The stream is that of Spark's checkpoint: a job that began
anew reads all journals again, and what it appends has another name of the stream.

Written by the package `deltalake`: no library on Spark's class path is needed, and any engine that knows Delta reads it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa

from adapter.errors import AdapterError, ConfigError
from adapter.pipeline.config import HistorySection
from adapter.pipeline.lag.files import BatchInfo, LagFiles
from adapter.pipeline.lag.segment_rows import US_OF_SECOND
from adapter.pipeline.places import Place
from adapter.runtime.version import install_extra

TABLES = ("groups", "rewinds", "rejects")
FIELD = "[lag.history] delta"


class History:
    """Appends complete batches. `section`: without a place, nothing is done. Raises ConfigError if the library is missing."""

    def __init__(self, files: LagFiles, section: HistorySection) -> None:
        self._files, self._keep = files, timedelta(days=section.keep_days)
        self._tables = {name: _Delta(section.delta / name) for name in TABLES} if section.delta else {}
        self._swept: date | None = None

    def add(self, info: BatchInfo, stream: str) -> None:
        """Append the tables of a complete batch, unless they are there. `stream`: what numbers batches, Spark's checkpoint.

        Raises AdapterError if the storage or Delta fails, OSError.
        """
        day = datetime.fromtimestamp(info.now / US_OF_SECOND, UTC).date()
        for name, table in self._tables.items():
            if table.newest(stream) < info.batch:
                rows = self._files.read_of(info, name)
                if rows.num_rows:
                    table.append(_placed(rows, day, stream, info.batch), stream, info.batch)
        if self._tables and day != self._swept:
            for table in self._tables.values():
                table.sweep(day, day - self._keep)
            self._swept = day


def _placed(rows: pa.Table, day: date, stream: str, batch: int) -> pa.Table:
    columns = {
        "date": (pa.scalar(day), "of the batch, in UTC"),
        "stream": (pa.scalar(stream), "Spark's checkpoint; a job that began anew has another one"),
        "batch": (pa.scalar(batch), "the number of the batch in its stream"),
    }
    for name, (value, comment) in columns.items():
        field = pa.field(name, value.type, metadata={"comment": comment})
        rows = rows.append_column(field, pa.repeat(value, rows.num_rows))
    return rows


class _Delta:
    """One table. Its errors have the setting and the place in them, and no credentials."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._library = _library()
        self._url, self._options = storage(place)

    def newest(self, stream: str) -> int:
        """The newest batch of a stream; -1 without any."""
        with _errors(self._place):
            table = self._open()
            version = table.transaction_version(stream) if table else None
            return -1 if version is None else int(version)

    def append(self, rows: pa.Table, stream: str, batch: int) -> None:
        """Append rows, and note the batch, in one commit."""
        noted = self._library.CommitProperties(app_transactions=[self._library.Transaction(stream, batch)])
        with _errors(self._place):
            self._library.write_deltalake(
                self._url, rows, mode="append", partition_by=["date"], commit_properties=noted, storage_options=self._options
            )

    def sweep(self, day: date, since: date) -> None:
        """Make one file of those of each date before this one, delete what is before `since`, and files that no version needs."""
        with _errors(self._place):
            table = self._open()
            if table:
                table.delete(f"date < '{since}'")
                table.optimize.compact(partition_filters=[("date", "<", str(day))])
                table.vacuum(dry_run=False)

    def _open(self) -> Any:  # noqa: ANN401 - the library may not be installed
        # `is_deltatable` would hold up all threads of Python while it waits for the storage.
        try:
            return self._library.DeltaTable(self._url, storage_options=self._options)
        except self._library.exceptions.TableNotFoundError:
            return None


def storage(place: Place) -> tuple[str, dict[str, str]]:
    """The URL or path that `deltalake` takes, and its options for the storage: what our URL of an object store says.

    Raises ConfigError for credentials in a URL that is not one of S3.
    """
    if not place.is_remote:
        return place.url, {}
    parts = urlsplit(place.url)
    if place.scheme != "s3":
        if str(place) != place.url:
            raise ConfigError(f"{FIELD} = '{place}': has credentials in the URL: give them by the environment")
        return place.url, {}
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    options = {"region": query.get("region", "")}
    options |= {"access_key_id": unquote(parts.username or ""), "secret_access_key": unquote(parts.password or "")}
    if "endpoint_override" in query:
        options["endpoint"] = f"{query.get('scheme', 'https')}://{query['endpoint_override']}"
        options["allow_http"] = str(query.get("scheme") == "http").lower()
    return f"s3://{parts.hostname}{parts.path}", {name: value for name, value in options.items() if value}


def _library() -> Any:  # noqa: ANN401 - a module
    try:
        return import_module("deltalake")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{FIELD}: deltalake is not installed: {install_extra('delta')}") from error


@contextmanager
def _errors(place: Place) -> Iterator[None]:
    """Turn errors of Delta and of the storage into an AdapterError of one line."""
    failed = import_module("deltalake.exceptions").DeltaError
    try:
        yield
    except (failed, OSError) as error:
        raise AdapterError(f"{FIELD}: {place}: {str(error).strip().partition(chr(10))[0]}") from error
