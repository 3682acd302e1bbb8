"""Reads the Meta Service's records as Arrow batches: split into parts on the driver, read in the tasks."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from adapter.meta.blocking import MetaCalls
from adapter.model.arrow import decode_packed
from adapter.model.names import name_problem
from adapter.pipeline.offsets.options import ReadOptions
from adapter.rpc import meta_pb

# Without the option `partitions`: the records of a part, and the largest number of parts. A task needs some 50 ms to begin.
PART_RECORDS = 250_000
AUTO_PARTS = 64


@dataclass
class Part(InputPartition):
    """The records after the token `after`, up to the token `until`."""

    after: bytes
    until: bytes


class OffsetsReader(DataSourceReader):
    """Reads the records that the options select. Created on the driver; `read` runs in the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """Split the records into parts of about the same size. Raises MetaUnavailableError, RefusedError."""
        options = self._options
        with closing(self._calls()) as calls:
            reply = calls.split(options.namespace or "", options.group or "", options.partitions or AUTO_PARTS)
        tokens = list(reply.tokens)
        if options.partitions is None:
            parts = max(-(-reply.records // PART_RECORDS), 1)
            tokens = _thinned(tokens, parts)
        return [Part(after, until) for after, until in zip([b"", *tokens], [*tokens, b""], strict=True)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - Spark says InputPartition
        """Yield the records of a part, one page in each batch. The next page is fetched while one is used."""
        with closing(self._calls()) as calls, ThreadPoolExecutor(1, "scan") as ahead:
            scan = partial(self._scan, calls, partition.until)
            coming: Future[meta_pb.ScanOffsetDataReply] | None = ahead.submit(scan, partition.after)
            while coming:
                page = coming.result()
                coming = ahead.submit(scan, page.next_page_token) if page.next_page_token else None
                yield self._rows(page)

    def _rows(self, page: meta_pb.ScanOffsetDataReply) -> pa.RecordBatch:
        rows = page.packed
        batch = decode_packed(rows.keys, rows.key_sizes, rows.records, rows.record_sizes)
        live = batch.column("live")
        if not self._options.tombstones and live.false_count:
            batch = batch.filter(live)
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def _scan(self, calls: MetaCalls, until: bytes, after: bytes) -> meta_pb.ScanOffsetDataReply:
        options = self._options
        return calls.scan(options.namespace or "", options.group or "", options.page_size, after, until)

    def _calls(self) -> MetaCalls:
        return MetaCalls(self._options.meta, self._options.retry_ms / 1000)


class FilteringReader(OffsetsReader):
    """A reader that handles equality filters on namespace and group itself, so that only these records are read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Accept filters, and return those that Spark has to apply. A group without a namespace is no range of keys."""
        namespaces, groups = _equalities(filters, "namespace"), _equalities(filters, "group")
        taken: list[Filter] = []
        namespace, group = self._options.namespace, self._options.group
        if namespace is None and namespaces:
            taken.append(namespaces[0])
            namespace = namespaces[0].value
        if namespace is not None and group is None and groups:
            taken.append(groups[0])
            group = groups[0].value
        self._options = self._options.model_copy(update={"namespace": namespace, "group": group})
        return [found for found in filters if not any(found is one for one in taken)]


def _equalities(filters: list[Filter], column: str) -> list[EqualTo | EqualNullSafe]:
    """The equality filters on a column whose value may be a name. For other values, Spark finds nothing anyway."""
    return [
        found
        for found in filters
        if isinstance(found, EqualTo | EqualNullSafe)
        and found.attribute == (column,)
        and isinstance(found.value, str)
        and not name_problem(found.value)
    ]


def _thinned(tokens: list[bytes], parts: int) -> list[bytes]:
    """At most `parts` - 1 of the tokens, evenly distributed."""
    if len(tokens) < parts:
        return tokens
    return [tokens[(len(tokens) + 1) * part // parts - 1] for part in range(1, parts)]
