"""Reads the configuration file of a running process again, at SIGHUP or when asked, and puts in force what may change meanwhile.

All or nothing: the file is checked whole, and so is each file that it names; then every component takes its part, without an
await in between. What is wrong is said in the log, in the status and as a metric, and changes nothing. Settings that need a
restart stay as they are and are named.

Certificates and tokens that are replaced on disk are noticed without a signal: their content is compared every few seconds, so it
does not matter whether a file was written, renamed over, or is behind a symbolic link that now points elsewhere (Kubernetes).
"""

import asyncio
import hashlib
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import anyio
import structlog
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from adapter.errors import AdapterError, ConfigError, InvalidInputError
from adapter.runtime.settings.config import Loaded, Section, load_file
from adapter.runtime.settings.live import LiveSettings, Prepared
from adapter.runtime.settings.reading import Reader, read_file

log = structlog.get_logger(__name__)

C = TypeVar("C", bound=Section)
T = TypeVar("T", bound=Section)

POLL_S = 5.0  # between two looks at the files


class Change(NamedTuple):
    """A setting and its values, as `check-config` shows them."""

    field: str
    old: str
    new: str


class Report(NamedTuple):
    """What a reload has put in force, and the settings in the file that need a restart."""

    changed: Sequence[Change]
    needs_restart: Sequence[str]


class Reloading(Generic[C]):
    """The settings in force, and how they are replaced.

    `loaded` is what the process was started with; None without a file. `around` makes a context manager in which a reload runs,
    from its beginning to its end, also one that is refused.
    """

    def __init__(
        self,
        settings: C,
        live: LiveSettings,
        loaded: Loaded[C] | None = None,
        *,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
        poll_s: float = POLL_S,
        reader: Reader | None = None,
    ) -> None:
        self.settings = settings
        self.path = loaded.path if loaded else None
        self.sha256 = loaded.sha256 if loaded else ""
        self.read_at_ms = loaded.read_at_ms if loaded else 0
        self.differs = False
        self.needs_restart: Sequence[str] = ()
        self.last_error = ""
        self.files_error = ""
        self._file = loaded
        self._reader = reader or Reader()
        self._live = live
        self._around = around
        self._poll_s = poll_s
        self._parts: list[Callable[[C], Prepared]] = []
        self._lock = anyio.Lock()
        self._asked = asyncio.Event()

    def add(self, prepare: Callable[[C], Prepared]) -> None:
        """Have a component take part.

        `prepare` gets settings, reads the files that they name, and returns how they are put in force. It is called in a worker
        thread, and raises ConfigError; nothing is changed then.
        """
        self._parts.append(prepare)

    def ask(self) -> None:
        """Have `run` reload soon."""
        self._asked.set()

    async def run(self) -> None:
        """Reload at each SIGHUP, and look at the files every few seconds, until cancelled."""
        loop = asyncio.get_running_loop()
        # Not by the event loop's own method: that would restore the default action at the end, which kills a process that drains.
        before = signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(self.ask))
        try:
            # A signal that came before this was ignored.
            await self.look()
            if self.differs:
                self.ask()
            while True:
                with anyio.move_on_after(self._poll_s):
                    await self._asked.wait()
                if self._asked.is_set():
                    self._asked.clear()
                    await self._reload_at_signal()
                await self.look()
        finally:
            signal.signal(signal.SIGHUP, before)

    async def reload(self, *, allow_defaults: bool = False) -> Report:
        """Read the file and put in force what may change. Raises ConfigError that names what is wrong; nothing is changed then.

        A setting that stood in the file and is gone is wrong as well, unless `allow_defaults`. InvalidInputError without a file.
        """
        async with self._lock:
            with self._around():
                return await self._reload(allow_defaults=allow_defaults)

    async def look(self) -> None:
        """Compare the file with what was read, and take certificates and tokens that were replaced."""
        async with self._lock:
            try:
                if self.path:
                    path, self.differs = self.path, True  # until it is read
                    found = await self._reader.read(lambda: _sha256_of(path))
                    self.differs = found != self.sha256
                prepared = await self._prepare(self.settings)
            except ConfigError as error:
                self._refuse_files(str(error))
                return
            replaced = _replaced(prepared)
            self.files_error = ""
            if replaced:
                _apply(prepared)
                log.info("config.files_taken", files=replaced, help="new connections use them; those that are open live on")

    async def _reload_at_signal(self) -> None:
        try:
            await self.reload()
        except ConfigError:
            return  # logged already
        except AdapterError as error:
            log.warning("config.not_reloaded", error=str(error))

    async def _reload(self, *, allow_defaults: bool) -> Report:
        path = self.path
        if path is None or self._file is None:
            raise InvalidInputError("config: this process was started without --config, so there is no file to read again")
        try:
            loaded = await self._reader.read(lambda: load_file(path, type(self.settings)))
            if not allow_defaults:
                _check_lost(self._file, loaded)
            settings = _taken(self.settings, loaded.settings, self._live)
            prepared = await self._prepare(settings)
        except ConfigError as error:
            self.last_error = str(error)
            log.error("config.refused", error=str(error), help="nothing was changed: correct it and reload again")
            raise
        changed = list(differences(self.settings, settings))
        named = {change.field for change in changed}
        changed += [Change(name, "file", "new content") for name in _replaced(prepared) if name not in named]
        _apply(prepared)
        self._file = loaded
        self.settings, self.sha256, self.read_at_ms = settings, loaded.sha256, loaded.read_at_ms
        self.needs_restart = [change.field for change in differences(settings, loaded.settings)]
        self.differs, self.last_error, self.files_error = False, "", ""
        log.info(
            "config.reloaded", changed=[change.field for change in changed], needs_restart=self.needs_restart, sha256=self.sha256
        )
        return Report(changed, self.needs_restart)

    async def _prepare(self, settings: C) -> list[Prepared]:
        """Raise ConfigError."""
        return await self._reader.read(lambda: [prepare(settings) for prepare in self._parts])

    def _refuse_files(self, why: str) -> None:
        """Note that replaced files cannot be used; the log has it once."""
        if why != self.files_error:
            log.warning("config.files_refused", error=why, help="what was read before stays in use")
        self.files_error = why


class ReloadingCollector(Collector):
    """The metrics of a `Reloading`. `prefix` is that of the process's metrics."""

    def __init__(self, prefix: str, reloading: Reloading[Any]) -> None:
        self._prefix = prefix
        self._reloading = reloading

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics. Called in the metrics thread."""
        now = self._reloading
        values = {
            "config_last_reload_success": ("1 unless the last reload was refused.", not now.last_error),
            "config_last_reload_success_timestamp_seconds": (
                "When the configuration file in force was read (Unix time); 0 without one.",
                now.read_at_ms / 1000,
            ),
            "config_file_differs": ("1 while the file has other content than what was read, or cannot be read.", now.differs),
            "config_needs_restart": ("Settings in the file that wait for a restart.", len(now.needs_restart)),
            "config_files_refused": ("1 while a replaced certificate or token cannot be used.", bool(now.files_error)),
        }
        for name, (text, value) in values.items():
            yield GaugeMetricFamily(f"{self._prefix}_{name}", text, value=float(value))
        info = GaugeMetricFamily(f"{self._prefix}_config_hash", "1, with the SHA-256 of the file in force.", labels=["sha256"])
        info.add_metric([now.sha256], 1.0)
        yield info


def differences(before: Section, after: Section, prefix: str = "") -> Iterator[Change]:
    """The settings in which two sections of the same kind differ. A section that only one of them has is one setting."""
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        if isinstance(old, Section) and isinstance(new, Section):
            yield from differences(old, new, f"{prefix}{name}.")
        else:
            yield Change(f"{prefix}{name}", _shown(before, name), _shown(after, name))


def _taken(before: T, after: T, live: LiveSettings, prefix: str = "") -> T:
    """The settings `before`, with those of `after` that may change while the process runs."""
    update: dict[str, object] = {}
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if live.has(f"{prefix}{name}", old, new):
            update[name] = new
        elif isinstance(old, Section) and isinstance(new, Section):
            update[name] = _taken(old, new, live, f"{prefix}{name}.")
    return before.model_copy(update=update)


def _check_lost(before: Loaded[T], after: Loaded[T]) -> None:
    """Raise ConfigError for a file that seems to be cut off."""
    lost = before.lost(after, [change.field for change in differences(before.settings, after.settings)])
    if lost:
        raise ConfigError(
            f"{after.path}: {lost}, and is not any more, as if the file were cut off: write the value that you want, also if it "
            "is the default; or reload with --allow-defaults, or restart"
        )


def _apply(prepared: Sequence[Prepared]) -> None:
    for one in prepared:
        one.apply()


def _replaced(prepared: Sequence[Prepared]) -> list[str]:
    return list(dict.fromkeys(name for one in prepared for name in one.replaced))


def _shown(section: Section, name: str) -> str:
    value = section.model_dump(mode="json", include={name})[name]
    return value if isinstance(value, str) else json.dumps(value)


def _sha256_of(path: Path) -> str:
    """The SHA-256 of a file; empty if it cannot be read."""
    try:
        return hashlib.sha256(read_file(path)[0]).hexdigest()
    except OSError:
        return ""
