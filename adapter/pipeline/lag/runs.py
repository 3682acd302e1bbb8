"""Columns of many rows: which rows belong together, and which of them is the largest. Numpy and Arrow, no loop over rows."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adapter.model.lag_rows import Bools, Ints

# Unknown: below every value, as null is in Spark's order.
NULL = int(np.iinfo(np.int64).min)

TEXT = pa.dictionary(pa.int32(), pa.string())


class Runs:
    """The rows with the same id, as a run of places in `order`. Runs are numbered by ascending id.

    `order`: the rows by ascending id; of equal ids in their order. `starts`, `sizes`: of each run in it.
    """

    def __init__(self, ids: Ints) -> None:
        ascending = len(ids) < 2 or bool((ids[1:] >= ids[:-1]).all())  # noqa: PLR2004 - one row is in order
        self.order: Ints = np.arange(len(ids)) if ascending else np.argsort(ids, kind="stable")
        self.starts = starts_of(ids if ascending else ids[self.order])
        self.sizes: Ints = np.diff(self.starts, append=len(ids))

    def numbers(self) -> Ints:
        """The number of each row's run."""
        numbers = np.empty(len(self.order), np.int64)
        numbers[self.order] = np.repeat(np.arange(len(self.starts)), self.sizes)
        return numbers

    def largest(self, columns: Sequence[Ints]) -> Ints:
        """For each run the row whose tuple of columns is the largest; of equal ones any."""
        found = self.order[self.starts]
        several = self.sizes > 1
        rows, runs = self.order[np.repeat(several, self.sizes)], np.repeat(np.arange(several.sum()), self.sizes[several])
        for column in columns:
            starts = starts_of(runs)
            if len(rows) == len(starts):
                break
            values = column[rows]
            best = values == np.maximum.reduceat(values, starts)[runs]
            rows, runs = rows[best], runs[best]
        found[several] = rows[starts_of(runs)]
        return found


def starts_of(ids: Ints) -> Ints:
    """Where each run of equal ids begins."""
    first = np.ones(len(ids), np.bool_)
    np.not_equal(ids[1:], ids[:-1], out=first[1:])
    return np.flatnonzero(first)


def places_in_runs(ids: Ints) -> tuple[Ints, Ints]:
    """For each place its place in its run of equal ids, and the size of the run."""
    starts = starts_of(ids)
    sizes: Ints = np.diff(starts, append=len(ids))
    return np.arange(len(ids)) - np.repeat(starts, sizes), np.repeat(sizes, sizes)


def newest(ids: Ints, count: int) -> Bools:
    """Which places are among the last `count` of their run of equal ids."""
    place, size = places_in_runs(ids)
    last: Bools = size - place <= count
    return last


def paired(major: Ints, minor: Ints) -> Ints:
    """One id for each pair, at least 0: it orders rows as the pairs do. `major` is at least 0."""
    if not len(major):
        return major
    least = int(minor.min())
    span = int(minor.max()) - least + 1
    if span * (int(major.max()) + 1) >= 2**63:
        major, minor = (np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64) for values in (major, minor))
        least, span = 0, int(minor.max()) + 1
    return major * span + (minor - least)


def ids_of(table: pa.Table, names: Sequence[str]) -> Ints:
    """An id for each row: equal for equal texts in these columns, and ordered as the texts are (by their UTF-8)."""
    ids = np.zeros(table.num_rows, np.int64)
    for name in names:
        ids = paired(ids, ranks(table[name]))
    return ids


def ranks(column: pa.ChunkedArray) -> Ints:
    """The rank of each row's text, by UTF-8, in the column's dictionary."""
    codes, words = coded(column)
    rank = np.empty(len(words), np.int64)
    rank[pc.array_sort_indices(words).to_numpy()] = np.arange(len(words))
    return rank[codes]


def coded(column: pa.ChunkedArray) -> tuple[Ints, pa.StringArray]:
    """The codes of a dictionary column that has one dictionary, and the dictionary."""
    if not column.num_chunks:
        return np.empty(0, np.int64), pa.array([], pa.string())
    if column.num_chunks > 1:
        column = column.unify_dictionaries()
    codes = [chunk.indices.to_numpy() for chunk in column.chunks]
    return np.concatenate(codes).astype(np.int64), column.chunk(0).dictionary


def stacked(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """The rows of all tables, each column in one chunk."""
    together = pa.concat_tables([schema.empty_table(), *tables])
    return together.unify_dictionaries().combine_chunks()


def tidied(table: pa.Table) -> pa.Table:
    """The same rows; dictionaries have only the words in use, ordered by UTF-8."""
    for at, field in enumerate(table.schema):
        if not pa.types.is_dictionary(field.type):
            continue
        codes, words = coded(table.column(at))
        used, places = _used(codes, len(words))
        words = words.take(pa.array(used))
        order = pc.array_sort_indices(words).to_numpy()
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        column = pa.DictionaryArray.from_arrays(pa.array(rank[places], pa.int32()), words.take(pa.array(order)))
        table = table.set_column(at, field, column)
    return table


def _used(codes: Ints, words: int) -> tuple[Ints, Ints]:
    """The words in use, and for each row the place of its own in them. Few rows do not pay for a large dictionary."""
    if len(codes) < words:
        used, places = np.unique(codes, return_inverse=True)
        return used, places.reshape(-1)
    there = np.bincount(codes, minlength=words) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def ints(table: pa.Table, name: str) -> Ints:
    """A column of whole numbers; null is NULL."""
    column = table[name]
    if pa.types.is_timestamp(column.type) or pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8() if pa.types.is_boolean(column.type) else pa.int64())
    if column.null_count:
        column = pc.fill_null(column, NULL)
    values: Ints = column.to_numpy().astype(np.int64, copy=False)
    return values
