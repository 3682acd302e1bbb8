"""A configuration that is read again: what is taken, what waits for a restart, and what a bad file changes (nothing)."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from adapter.errors import ConfigError, InvalidInputError
from adapter.metaservice.config import LIVE as META_LIVE
from adapter.metaservice.config import MetaConfig
from adapter.runtime.settings.config import Section, load_file, parse
from adapter.runtime.settings.live import NOTHING_NEW, Live, LiveSettings, Prepared
from adapter.runtime.settings.reloading import Reloading, ReloadingCollector, differences
from adapter.sidecar.config import LIVE, AdapterConfig
from adapter.testing.waiting import eventually

TLS = "[server.tls]\ncert = 'a.crt'\nkey = 'a.key'\n"


class Part:
    """A component that takes part: notes the settings in force, and refuses what a test says."""

    def __init__(self) -> None:
        self.taken: list[AdapterConfig] = []
        self.refuses = ""
        self.secret: Path | None = None
        self._read = b""

    def prepare(self, settings: AdapterConfig) -> Prepared:
        """Refuse, or return what notes them."""
        if self.refuses:
            raise ConfigError(self.refuses)
        found = self.secret.read_bytes() if self.secret else b""
        replaced = ["admin.token_file"] if found != self._read else []

        def apply() -> None:
            self._read = found
            self.taken.append(settings)

        return Prepared(apply, replaced)


def reloading_of(path: Path, text: str = "", part: Part | None = None) -> Reloading[AdapterConfig]:
    """What was started with this text in this file."""
    path.write_text(text)
    loaded = load_file(path, AdapterConfig)
    made = Reloading(loaded.settings, LIVE, loaded, poll_s=0.01)
    if part:
        made.add(part.prepare)
    return made


@asynccontextmanager
async def running(reloading: Reloading[AdapterConfig]) -> AsyncIterator[None]:
    """Its signals and its looks at the files."""
    task = asyncio.create_task(reloading.run())
    await asyncio.sleep(0)
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_what_may_change_is_taken_and_the_rest_is_named(tmp_path: Path) -> None:
    """Values are shown as `check-config` shows them; what waits stays as it was, and is named until the restart."""
    path, part = tmp_path / "a.toml", Part()
    reloading = reloading_of(path, "[flush]\ninterval_ms = 100\n", part)
    path.write_text(
        "mode = 'write_through'\n[flush]\ninterval_ms = 50\n[recovery]\nbatch_keys = 7\n[store]\nwal_sync = 'always'\n"
    )
    report = await reloading.reload()
    assert [tuple(change) for change in report.changed] == [
        ("mode", "write_back", "write_through"),
        ("flush.interval_ms", "100", "50"),
    ]
    assert report.needs_restart == ["store.wal_sync", "recovery.batch_keys"]
    assert reloading.needs_restart == report.needs_restart
    now = reloading.settings
    assert part.taken == [now]
    assert (now.mode, now.flush.interval_ms, now.recovery.batch_keys, now.store.wal_sync) == (
        "write_through",
        50,
        2_000,
        "interval",
    )
    assert reloading.sha256 == load_file(path, AdapterConfig).sha256
    # Once more: nothing is new, and the same still waits.
    again = await reloading.reload()
    assert (again.changed, again.needs_restart) == ([], report.needs_restart)
    path.write_text("mode = 'write_through'\n[flush]\ninterval_ms = 50\n")
    assert (await reloading.reload(allow_defaults=True)).needs_restart == []


GIVEN = "meta.endpoints = ['a:1']\nadmin.token_file = 'token'\n"
POLICIES = "".join(f"[[policy]]\ngroups = '{name}'\nmode = 'write_through'\n" for name in "ab")


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (GIVEN, "", "meta.endpoints was given"),
        (GIVEN, GIVEN[:25], "admin.token_file was given"),
        ("[server.tls]\ncert = 'a'\nkey = 'b'\n", "[server]\n", "server.tls.cert was given"),
        (GIVEN + POLICIES, GIVEN + POLICIES[: len(POLICIES) // 2], "policy was given 2 times"),
        ("[flush]\ninterval_ms = 5000\n", "[flush]\ninterval_ms = 50", "its last line was complete"),
    ],
)
async def test_a_file_that_seems_to_be_cut_off_is_refused(tmp_path: Path, before: str, after: str, lost: str) -> None:
    """An empty file was taken: the endpoints were those of the default, and OffsetAdmin needed no token."""
    path, part = tmp_path / "a.toml", Part()
    reloading = reloading_of(path, before, part)
    path.write_text(after)
    with pytest.raises(ConfigError, match=f"{lost}.*--allow-defaults"):
        await reloading.reload()
    assert part.taken == []
    assert lost in reloading.last_error
    if after:
        await reloading.reload(allow_defaults=True)
        assert len(part.taken) == 1
        assert not reloading.last_error


async def test_what_changes_nothing_may_be_taken_out_of_a_file(tmp_path: Path) -> None:
    """A setting that said what is the default; and any setting whose default is written."""
    path = tmp_path / "a.toml"
    reloading = reloading_of(path, "[flush]\ninterval_ms = 100\n[expiry]\nretention_hours = 3\n")
    path.write_text("[expiry]\nretention_hours = 5\n")
    assert [change.field for change in (await reloading.reload()).changed] == ["expiry.retention_hours"]


async def test_a_signal_does_not_take_a_file_that_seems_to_be_cut_off(tmp_path: Path) -> None:
    """SIGHUP has no option; the log and the status say what to do."""
    path = tmp_path / "a.toml"
    reloading = reloading_of(path, GIVEN)
    async with running(reloading):
        await eventually(lambda: signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL)
        path.write_text("")
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: "meta.endpoints was given" in reloading.last_error)
    assert reloading.settings.meta.endpoints == ("a:1",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[flush]\ninterval_ms = 0\n", r"flush\.interval_ms: .*greater than or equal to 1 \(got 0\)"),
        ("[flush]\ninterval_ms = 50\nintervall = 1\n", r"flush\.intervall: is not a setting"),
        ("[flush\n", "is not valid TOML"),
        (f"[flush]\ninterval_ms = {'9' * 5_000}\n", "is not valid TOML"),
        ("mode = 'fast'\n", "mode: "),
        ("\xff", "mode|TOML"),
        (None, "cannot be read: No such file"),
    ],
)
async def test_a_bad_file_changes_nothing_and_says_what_is_wrong(tmp_path: Path, text: str | None, why: str) -> None:
    """In the answer, in the log and in the status, until a reload was not refused."""
    path, part = tmp_path / "a.toml", Part()
    reloading = reloading_of(path, "[expiry]\nretention_hours = 3\n", part)
    before = reloading.settings, reloading.sha256, reloading.read_at_ms
    if text is None:
        path.unlink()
    else:
        path.write_text(text, encoding="latin-1")
    with capture_logs() as lines, pytest.raises(ConfigError, match=why):
        await reloading.reload()
    assert [line["event"] for line in lines] == ["config.refused"]
    assert part.taken == []
    assert (reloading.settings, reloading.sha256, reloading.read_at_ms) == before
    await reloading.look()
    assert reloading.differs
    assert reloading.last_error
    path.write_text("[expiry]\nretention_hours = 4\n")
    await reloading.reload()
    assert (reloading.last_error, reloading.differs, len(part.taken)) == ("", False, 1)


async def test_one_refusal_keeps_every_component_as_it_was(tmp_path: Path) -> None:
    """Also those that had prepared already."""
    path, first, second = tmp_path / "a.toml", Part(), Part()
    reloading = reloading_of(path, "", first)
    reloading.add(second.prepare)
    second.refuses = "server.tls: server.crt: not PEM files that belong together"
    path.write_text("[log]\nlevel = 'debug'\n")
    with pytest.raises(ConfigError, match=r"^server\.tls"):
        await reloading.reload()
    assert (first.taken, second.taken, reloading.settings.log.level) == ([], [], "info")


async def test_a_replaced_file_is_taken_without_a_signal(tmp_path: Path) -> None:
    """By its content, as where Kubernetes lets a symbolic link point elsewhere; only what changed is logged, once."""
    part = Part()
    part.secret = tmp_path / "token"
    for name, content in (("..1", "old"), ("..2", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(content)
    (tmp_path / "..data").symlink_to("..1")
    part.secret.symlink_to("..data/token")
    reloading = reloading_of(tmp_path / "a.toml", "", part)
    await reloading.look()
    assert len(part.taken) == 1
    async with running(reloading):
        with capture_logs() as lines:
            (tmp_path / "..data_tmp").symlink_to("..2")
            (tmp_path / "..data_tmp").rename(tmp_path / "..data")
            await eventually(lambda: len(part.taken) == 2)
            for _ in range(3):
                await reloading.look()
    assert [line["files"] for line in lines if line["event"] == "config.files_taken"] == [["admin.token_file"]]
    assert len(part.taken) == 2


async def test_a_replaced_file_that_cannot_be_used_is_said_once(tmp_path: Path) -> None:
    """Until it can; the settings stay in force."""
    part = Part()
    reloading = reloading_of(tmp_path / "a.toml", "", part)
    with capture_logs() as lines:
        part.refuses = "server.tls: a.crt, a.key: not PEM files that belong together: KEY_VALUES_MISMATCH"
        for _ in range(3):
            await reloading.look()
        assert reloading.files_error == part.refuses
        part.refuses = ""
        await reloading.look()
    assert reloading.files_error == ""
    assert [line["event"] for line in lines] == ["config.files_refused"]


async def test_a_signal_reloads_and_never_ends_the_process(tmp_path: Path) -> None:
    """Whatever is in the file. A change that came before the signal was handled is found as well."""
    path, part = tmp_path / "a.toml", Part()
    reloading = reloading_of(path, "", part)
    path.write_text("[flush]\ninterval_ms = 7\n")
    async with running(reloading):
        await eventually(lambda: reloading.settings.flush.interval_ms == 7)
        path.write_text("[flush]\ninterval_ms = 8\n")
        await eventually(lambda: reloading.differs)
        assert reloading.settings.flush.interval_ms == 7
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: reloading.settings.flush.interval_ms == 8)
        path.write_text("[flush]\ninterval_ms = -1\n")
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: bool(reloading.last_error))
        path.write_text("[flush]\ninterval_ms = 9\n")
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: reloading.settings.flush.interval_ms == 9)


async def test_a_refusal_at_a_signal_is_logged_once(tmp_path: Path) -> None:
    """By the reload itself; a file that is missing altogether is no other case."""
    path = tmp_path / "a.toml"
    reloading = reloading_of(path)
    path.unlink()
    with capture_logs() as lines:
        async with running(reloading):
            await eventually(lambda: bool(reloading.last_error))
            await eventually(lambda: reloading.differs)
    assert [line["event"] for line in lines] == ["config.refused"]


async def test_what_is_around_a_reload_is_left_after_a_refusal_as_well(tmp_path: Path) -> None:
    """The service manager is told when a reload begins and when it has ended."""
    path, told = tmp_path / "a.toml", list[str]()
    path.write_text("")
    loaded = load_file(path, AdapterConfig)

    @contextmanager
    def around() -> Iterator[None]:
        told.append("begins")
        yield_ = told.append
        try:
            yield
        finally:
            yield_("ends")

    reloading = Reloading(loaded.settings, LIVE, loaded, around=around)
    await reloading.reload()
    path.write_text("nonsense = 1\n")
    with pytest.raises(ConfigError):
        await reloading.reload()
    assert told == ["begins", "ends"] * 2


async def test_without_a_file_there_is_nothing_to_read_again() -> None:
    """The error says so; certificates cannot have been named either."""
    with pytest.raises(InvalidInputError, match="started without --config"):
        await Reloading(AdapterConfig(), LIVE).reload()


@pytest.mark.parametrize(
    ("before", "after", "waits"),
    [
        (TLS, TLS.replace("a.crt", "b.crt"), []),
        (TLS + "client_ca = 'a.ca'\n", TLS + "client_ca = 'b.ca'\n", []),
        (TLS, TLS + "client_ca = 'a.ca'\n", ["server.tls.client_ca"]),
        (TLS + "client_ca = 'a.ca'\n", TLS, ["server.tls.client_ca"]),
        ("", TLS, ["server.tls"]),
        (TLS, "", ["server.tls"]),
        ("", "[meta.tls]\nca = 'x'\n", ["meta.tls"]),
        ("", "[admin]\ntoken_file = 'x'\n", []),
        ("", "[log]\nformat = 'json'\nlevel = 'debug'\n", ["log.format"]),
    ],
)
async def test_tls_is_exchanged_but_neither_begun_nor_ended(tmp_path: Path, before: str, after: str, waits: list[str]) -> None:
    """Whether a server speaks TLS, and whether it asks for certificates, is settled when it begins to listen."""
    path = tmp_path / "a.toml"
    reloading = reloading_of(path, before)
    path.write_text(after)
    assert list((await reloading.reload(allow_defaults=True)).needs_restart) == waits
    assert [change.field for change in differences(reloading.settings, load_file(path, AdapterConfig).settings)] == waits


@pytest.mark.parametrize(("kind", "live"), [(AdapterConfig, LIVE), (MetaConfig, META_LIVE)])
def test_every_live_setting_exists(kind: type[Section], live: LiveSettings) -> None:
    """A name with a typing error would be one that never changes."""
    for name in (*live.names, *live.exchanged):
        section: type[BaseModel] = kind
        *sections, last = name.split(".")
        for part in sections:
            annotation = section.model_fields[part].annotation
            kinds = [annotation, *getattr(annotation, "__args__", ())]
            section = next(each for each in kinds if isinstance(each, type) and issubclass(each, BaseModel))
        assert last in section.model_fields, name


async def test_the_metrics_say_what_is_in_force(tmp_path: Path) -> None:
    """With the names that Prometheus itself has for its own reloads."""
    path = tmp_path / "a.toml"
    reloading = reloading_of(path)

    def values() -> dict[str, float]:
        families = ReloadingCollector("offset_adapter", reloading).collect()
        return {sample.name.removeprefix("offset_adapter_config_"): sample.value for each in families for sample in each.samples}

    assert values() == {
        "last_reload_success": 1,
        "last_reload_success_timestamp_seconds": reloading.read_at_ms / 1000,
        "file_differs": 0,
        "needs_restart": 0,
        "files_refused": 0,
        "hash": 1,
    }
    path.write_text("[store]\nwal_sync = 'never'\n")
    await reloading.reload()
    path.write_text("x")
    with pytest.raises(ConfigError):
        await reloading.reload()
    await reloading.look()
    found = values()
    assert (found["last_reload_success"], found["file_differs"], found["needs_restart"]) == (0, 1, 1)
    labels = [sample.labels for each in ReloadingCollector("x", reloading).collect() for sample in each.samples if sample.labels]
    assert labels == [{"sha256": reloading.sha256}]


async def test_a_pause_has_the_length_that_the_settings_say_by_then() -> None:
    """Shorter at once, longer as well; counted from its begin."""
    live = Live(3_600.0)
    task = asyncio.create_task(live.pause(lambda seconds: seconds))
    await asyncio.sleep(0.01)
    live.take(7_200.0)
    await asyncio.sleep(0.01)
    assert not task.done()
    live.take(0.001)
    await asyncio.wait_for(task, 60)
    await asyncio.wait_for(live.pause(lambda _: -1.0), 60)
    assert NOTHING_NEW.apply() is None


def test_settings_of_both_kinds_are_compared_by_field() -> None:
    """A section that only one of them has is one setting; the order of the file is kept."""
    before = parse({"server": {"tls": {"cert": "a", "key": "b"}}}, MetaConfig, source="test")
    after = parse({"tombstones": {"interval_ms": 10}}, MetaConfig, source="test")
    assert [tuple(change) for change in differences(before, after)] == [
        ("server.tls", '{"cert": "a", "key": "b", "client_ca": null}', "null"),
        ("tombstones.interval_ms", "600000", "10"),
    ]
