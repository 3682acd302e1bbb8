"""The options of the data sources over journals. Unknown options are refused by their names."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from adapter.errors import ConfigError
from adapter.pipeline.journal.listing import roots_of

_MAX_FILES = 1_000
_PARTITION_BYTES = 4 * 2**20
_NAMES = ("path", "paths", "maxFilesPerTrigger", "maxBytesPerTrigger", "partitionBytes")


@dataclass(frozen=True)
class JournalOptions:
    """The options of `load`. Sizes are those of the compressed files, in bytes. URLs in `roots` may have credentials."""

    roots: tuple[str, ...]
    max_files: int | None
    max_bytes: int | None
    partition_bytes: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Parse the options. Raises ConfigError that names an invalid one."""
        known = {name.lower() for name in _NAMES}
        if unknown := [name for name in options if name.lower() not in known]:
            raise ConfigError(f"offset-journal: no such option: {', '.join(unknown)}; there are {', '.join(_NAMES)}")
        max_files, max_bytes = _number(options, "maxFilesPerTrigger"), _number(options, "maxBytesPerTrigger")
        if max_files is None and max_bytes is None:
            max_files = _MAX_FILES
        partition_bytes = _number(options, "partitionBytes") or _PARTITION_BYTES
        return cls(tuple(roots_of(_paths(options))), max_files, max_bytes, partition_bytes)


def _paths(options: Mapping[str, str]) -> list[str]:
    several = options.get("paths")
    if several is None:
        return [options["path"]] if options.get("path") else []
    # The value is not shown: a URL in it may have credentials.
    try:
        paths = json.loads(several)
    except ValueError as error:
        raise ConfigError(f"offset-journal: option paths: is no JSON: {error}") from error
    if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
        raise ConfigError('offset-journal: option paths: is no JSON list of directories, such as ["/a", "/b"]')
    return [*([options["path"]] if options.get("path") else []), *paths]


def _number(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"offset-journal: {name} = {value!r}: is no number from 1 on")
    return int(value)
