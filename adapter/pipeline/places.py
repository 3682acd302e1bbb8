"""Files and directories of the jobs: local paths, or URLs that pyarrow opens (file, s3, s3a, gs), and hdfs by hdfs-native.

What is written exists as a whole or not at all: a file is renamed into place, an object store shows an object when its upload is
complete. Nothing here renames a directory. A URL may hold credentials: `str()` of a place never shows them.
"""

import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from adapter.errors import AdapterError, ConfigError
from adapter.runtime.durable import files
from adapter.runtime.version import install_extra

# Hadoop's URL schemes for S3; pyarrow knows s3 only.
_SCHEMES = {"s3a": "s3", "s3n": "s3"}
_S3_SCHEMES = {"s3", *_SCHEMES}
_HDFS = "hdfs"
# The schemes that `opened` knows, as `Place.scheme` has them.
SCHEMES = {"file", "s3", "gs", "gcs", "abfs", "abfss", "viewfs", _HDFS}
# Schemes whose URLs name a container before the @: abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH.
_CONTAINER_SCHEMES = {"abfs", "abfss"}
# What may stand in the path of a URL beside letters and digits.
_UNQUOTED = "/=,:+-._~"
# Parameters of a URL that may be shown; others may be credentials.
_HARMLESS = {"endpoint_override", "region", "scheme"}


class Entry(NamedTuple):
    """A file or directory below a place: its path relative to it, its size in bytes, whether it is a directory."""

    path: str
    size: int
    is_directory: bool


@dataclass(frozen=True)
class Place:
    """A file or a directory. `url`: an absolute path, or a URL, possibly with credentials; no slash at the end."""

    url: str

    @classmethod
    def of(cls, text: "str | Path | Place") -> Self:
        """A place by its path or URL; a relative path is made absolute."""
        text = text.url if isinstance(text, Place) else str(text)
        if "://" not in text:
            return cls(str(Path(text).absolute()))
        scheme, rest = text.split("://", 1)
        return cls(str(Path("/" + rest.lstrip("/"))) if scheme == "file" else text.rstrip("/"))

    def __str__(self) -> str:
        """The path, or the URL without user, password and tokens."""
        return redacted(self.url)

    def __repr__(self) -> str:
        """As `str`."""
        return f"Place({str(self)!r})"

    def __truediv__(self, name: str) -> "Place":
        """A place below this one. `name` may have slashes; it is a name as in a file system, not quoted as in a URL."""
        if not self.is_remote:
            return Place(f"{self.url}/{name}" if self.url != "/" else f"/{name}")
        parts = urlsplit(self.url)
        return Place(urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name, safe=_UNQUOTED)}")))

    @property
    def is_remote(self) -> bool:
        """Whether it is a URL: every machine sees the same."""
        return "://" in self.url

    @property
    def scheme(self) -> str:
        """The scheme of its URL as pyarrow knows it (`s3` for Hadoop's `s3a`); `file` for a path."""
        if not self.is_remote:
            return "file"
        scheme = urlsplit(self.url).scheme
        return _SCHEMES.get(scheme, scheme)

    @property
    def for_spark(self) -> str:
        """The URL for Spark, which would look for a path without a scheme in the cluster's default file system."""
        return self.url if self.is_remote else f"file://{self.url}"

    @property
    def name(self) -> str:
        """The last part of the path, as `/` takes it."""
        return unquote(urlsplit(self.url).path.rpartition("/")[2]) if self.is_remote else self.path.name

    @property
    def parent(self) -> "Place":
        """The directory that it is in."""
        if not self.is_remote:
            return Place(str(self.path.parent))
        parts = urlsplit(self.url)
        return Place(urlunsplit(parts._replace(path=parts.path.rpartition("/")[0])))

    @property
    def path(self) -> Path:
        """The local path. Raises ConfigError for a URL."""
        if self.is_remote:
            raise ConfigError(f"{self}: is a URL, and this has to be a path")
        return Path(self.url)

    def opened(self) -> tuple[Any, str]:
        """The file system, and the path in it. Raises ConfigError for a URL that cannot be opened."""
        if not self.is_remote:
            return _fs().LocalFileSystem(), self.url
        parts = urlsplit(self.url)
        root = urlunsplit(parts._replace(scheme=self.scheme, path="/"))
        try:
            system, base = _opened(root)
        except (OSError, ValueError, NotImplementedError) as error:  # Arrow's own errors are ValueErrors
            reason = str(error).partition("\n")[0].replace(root, redacted(root))
            raise ConfigError(f"{self}: cannot be opened: {reason}") from None  # its text has the URL, and Spark shows causes
        return system, f"{base.rstrip('/')}{unquote(parts.path)}"

    def read(self) -> bytes:
        """The content of a file. Raises FileNotFoundError, OSError."""
        with self.open() as file:
            content: bytes = file.read()
        return content

    def open(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Open a file for reading, as a context manager. Raises FileNotFoundError, OSError."""
        if not self.is_remote:
            return self.path.open("rb")
        system, path = self.opened()
        return system.open_input_file(path)

    def size(self) -> int | None:
        """The size of a file in bytes; None if there is no such file. Raises OSError."""
        system, path = self.opened()
        info = system.get_file_info(path)
        return info.size if info.type == _fs().FileType.File else None

    def write(self, content: bytes, content_type: str = "application/octet-stream") -> None:
        """Write a file, whole or not at all, and the directories above it; an existing one is replaced. Raises OSError.

        `content_type`: what an object store tells a browser of it.
        """
        if not self.is_remote:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write(self.url, content)
            return
        system, path = self.opened()
        if self.scheme == _HDFS:  # shows a file while it is written
            directory, _, name = path.rpartition("/")
            fresh = f"{directory}/.{name}.{secrets.token_hex(8)}"
            with system.open_output_stream(fresh) as stream:
                stream.write(content)
            system.handler.fs.mv(fresh, path, overwrite=True)
            return
        with system.open_output_stream(path, metadata={"Content-Type": content_type}) as stream:
            stream.write(content)

    def write_unsynced(self, content: bytes) -> None:
        """As `write`, but a power cut may leave a local file torn: for what can be made again. Syncing takes milliseconds."""
        if self.is_remote:
            self.write(content)
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f".{self.path.name}")
        fresh.write_bytes(content)
        fresh.rename(self.path)

    def entries(self, *, recursive: bool = False) -> list[Entry]:
        """What is below a directory, by path; empty if it does not exist. Raises OSError."""
        system, base = self.opened()
        found = listed(system, base, recursive=recursive, allow_not_found=True)
        start = len(base.rstrip("/")) + 1
        return sorted(Entry(info.path[start:], info.size or 0, info.type == _fs().FileType.Directory) for info in found)

    def is_directory(self) -> bool:
        """Whether it is a directory; in an object store, whether anything is below it. Raises OSError."""
        return bool(self._type() == _fs().FileType.Directory)

    def is_file(self) -> bool:
        """Whether it is a file. Raises OSError."""
        return bool(self._type() == _fs().FileType.File)

    def make(self) -> None:
        """Make the directory and those above it; object stores need none. Raises OSError."""
        if not self.is_remote:
            self.path.mkdir(parents=True, exist_ok=True)

    def delete(self) -> None:
        """Delete a file; absent is fine. Raises OSError."""
        system, path = self.opened()
        try:
            system.delete_file(path)
        except FileNotFoundError:
            return

    def delete_tree(self) -> None:
        """Delete a directory and all below it; absent is fine. Raises OSError."""
        system, path = self.opened()
        try:
            system.delete_dir(path)
        except FileNotFoundError:
            return

    def _type(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        system, path = self.opened()
        return system.get_file_info(path).type


def redacted(url: str) -> str:
    """A URL without user, password, and parameters that may be credentials; anything else as it is."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    rest, _, query = rest.partition("?")
    values = [(name, value if name in _HARMLESS else "***") for name, value in parse_qsl(query, keep_blank_values=True)]
    return f"{scheme}://{_without_user(scheme, rest)}" + (f"?{urlencode(values, safe='*:/')}" if values else "")


def _without_user(scheme: str, rest: str) -> str:
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if at:
        return rest if scheme in _CONTAINER_SCHEMES and ":" not in user else f"{host}{slash}{path}"
    if scheme in _S3_SCHEMES and ":" in authority:  # a secret with a slash that is not quoted: such a URL is refused, and shown
        return rest.rpartition("@")[2] if "@" in rest else "***"
    return rest


def listed(system: Any, base: str, *, recursive: bool = False, allow_not_found: bool = False) -> list[Any]:  # noqa: ANN401
    """Pyarrow's FileInfo of what is below a directory of a file system of pyarrow. Raises FileNotFoundError, OSError.

    In Google Cloud Storage pyarrow leaves out the directories (apache/arrow#35993), after it has listed all that is in them.
    """
    types = _fs().FileType
    without = system.type_name == "gcs" and not recursive
    found = system.get_file_info(_fs().FileSelector(base, allow_not_found=allow_not_found, recursive=recursive or without))
    if not without:
        return list(found)
    start = len(base.rstrip("/")) + 1
    below = {info.path[:end]: None for info in found if (end := info.path.find("/", start)) > 0}
    return [
        *(_fs().FileInfo(path, type=types.Directory) for path in below),
        *(info for info in found if "/" not in info.path[start:] and info.path not in below),
    ]


def data_files(place: Place, suffix: str = ".parquet") -> Iterator[Place]:
    """The files with this suffix directly in a directory, by name."""
    return (place / entry.path for entry in place.entries() if not entry.is_directory and entry.path.endswith(suffix))


def _fs() -> Any:  # noqa: ANN401 - pyarrow has no types
    """Pyarrow's file systems, imported when one is used: settings are checked without the extra `spark`, too."""
    from pyarrow import fs  # noqa: PLC0415

    return fs


@lru_cache(maxsize=64)
def _opened(root: str) -> tuple[Any, str]:
    """The file system of a URL with the path /, and what a path in it begins with."""
    if urlsplit(root).scheme == _HDFS:
        return _hdfs(root), ""
    opened: tuple[Any, str] = _fs().FileSystem.from_uri(root)
    return opened


def _hdfs(root: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    """HDFS by hdfs-native: pyarrow's own client needs libhdfs, which comes with Hadoop alone. Raises ValueError."""
    parts = urlsplit(root)
    if parts.username or parts.query:
        raise ValueError("is more than hdfs://HOST:PORT/PATH; HADOOP_USER_NAME names the user")
    try:
        system = import_module("hdfs_native.fsspec").HdfsFileSystem
    except ModuleNotFoundError:
        raise ValueError(f"hdfs-native is not installed: {install_extra('hdfs')}") from None
    return _fs().PyFileSystem(_fs().FSSpecHandler(system(host=parts.hostname, port=parts.port)))


def unusable(place: Place, field: str, error: OSError) -> AdapterError:
    """The error of a file operation, with the setting's name and the place."""
    return ConfigError(f"{field} = {str(place)!r}: {error.strerror or error}")


def unseen(place: Place) -> AdapterError:
    """The error of a task that does not find a file which the driver has found."""
    return AdapterError(
        f"{place}: is not seen by the machine {socket.gethostname()}, or was deleted meanwhile: name a directory that every "
        "machine shares, or a URL"
    )
