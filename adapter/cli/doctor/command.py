"""The commands `doctor` and `meta doctor`: choose the checks by the configuration, and print what they found.

Exit codes: 0 all is ok, or there are only warnings; 1 something failed; 2 the command line is wrong.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from adapter.cli import contexts, options, terminal, whom
from adapter.cli.contexts import Context
from adapter.cli.doctor import disk, machine, running, secrets, services
from adapter.cli.doctor.doubts import doubts
from adapter.cli.doctor.findings import FAIL, OK, WARN, Check, Finding, gather
from adapter.cli.output import TABLE, Form, listing, note, tell
from adapter.cli.table import LEFT, Rows, Side, print_table
from adapter.errors import ConfigError, InvalidInputError
from adapter.meta.config import MetaSection
from adapter.metaservice.config import MetaConfig
from adapter.runtime.settings.config import LogSection, load
from adapter.runtime.telemetry import logs
from adapter.sidecar.config import AdapterConfig

FIELDS = Finding._fields
_COLUMNS: dict[str, Side] = {"check": LEFT, "state": LEFT, "seen": LEFT}
_COLOURS = {OK: "green", WARN: "yellow", FAIL: "red"}


@click.command()
@options.config
@options.context
@options.form
def doctor(config: Path | None, context_name: str | None, form: Form) -> None:
    """Check what an adapter needs, whether it runs or not: configuration, disk, limits, clock, Meta Service, certificates.

    It starts nothing and changes nothing. Run it as the user of the adapter, in its working directory, with its --config.
    Without, it looks at the adapter and the Meta Service of the context, and at this machine.

    Exit code 0 when nothing failed (there may be warnings), 1 when something did.
    """
    chosen = whom.typed_context(click.get_current_context(), context_name)
    if config and chosen:
        raise InvalidInputError("--config and --context: name one of them")
    found = None if config else contexts.named(chosen)
    if found:
        _run(lambda: _context_checks(*found), form)
    else:
        _run(lambda: _adapter_checks(load(config, AdapterConfig) if config else AdapterConfig(), config), form)


@click.command("doctor")
@options.config
@options.form
def meta_doctor(config: Path | None, form: Form) -> None:
    """Check what a Meta Service needs, whether it runs or not: configuration, disk, limits, clock, etcd, certificates.

    It starts nothing and changes nothing. Run it as the user of the Meta Service, in its working directory.

    Exit code 0 when nothing failed (there may be warnings), 1 when something did.
    """
    _run(lambda: _meta_checks(load(config, MetaConfig) if config else MetaConfig(), config), form)


def _run(checks: Callable[[], Mapping[str, Check]], form: Form) -> None:
    logs.setup(LogSection(level="error"))  # what a client logs is said by the findings
    try:
        chosen = checks()
    except ConfigError as error:
        refused = partial(running.no_configuration, error)
        chosen = {"versions": partial(machine.versions, None), "configuration": refused, **_of_machine(None)}
    found = gather(chosen)
    _show(found, form)
    sys.exit(1 if any(row.state == FAIL for row in found) else 0)


class _Place(NamedTuple):
    """A directory that a process writes to."""

    name: str
    setting: str
    path: Path
    journal_max_bytes: int = 0


def _adapter_checks(config: AdapterConfig, source: Path | None) -> dict[str, Check]:
    places = [_Place("store", "store.path", config.store.path)]
    if config.journal.path:
        places.append(_Place("journal", "journal.path", config.journal.path, config.journal.disk_max_bytes))
    checks: dict[str, Check] = {
        "versions": partial(machine.versions, config.store.path / "db"),
        "configuration": partial(_configuration, source, [*doubts(config)]),
        **_of_places(places),
        **_of_machine(config.store.path),
        "adapter": partial(
            running.adapter, config.store.path, config.server.listen, config.server.unix_socket, machine.installed()
        ),
        "Meta Service": partial(services.meta_services, _meta_of(config, source), wants_robustmq=bool(config.robustmq.listen)),
    }
    if config.journal.path:
        checks["journal"] = partial(machine.packages, "journal", "journal.path", "adapter.sidecar.journal.writer", "journal")
    if config.telemetry.endpoint:
        checks["telemetry"] = partial(
            machine.packages, "telemetry", "telemetry.endpoint", "adapter.runtime.telemetry.otlp", "otel"
        )
    if config.server.unix_socket:
        checks["Unix socket"] = partial(running.unix_socket_directory, config.server.unix_socket)
    if config.robustmq.listen:
        checks["robustmq.listen"] = partial(running.front, config.store.path, config.robustmq.listen)
    checks |= secrets.files_of(config)
    for name, setting, address in (
        ("RocketMQ broker", "rocketmq.broker", config.rocketmq.broker),
        ("RobustMQ broker", "robustmq.broker", config.robustmq.broker),
        ("broker log", "broker_log.address", config.broker_log.address),
        ("collector", "telemetry.endpoint", config.telemetry.address),
    ):
        if address:
            checks[name] = partial(services.listens, name, setting, address)
    return checks


def _meta_of(config: AdapterConfig, source: Path | None) -> MetaSection:
    """The Meta Service of a configuration; of no configuration, that of the adapter which runs in this directory."""
    reply = None if source else running.asked(config.store.path, config.server.unix_socket)
    return config.meta.model_copy(update={"endpoints": tuple(reply.meta_endpoints)}) if reply else config.meta


def _context_checks(name: str, context: Context) -> dict[str, Check]:
    """What can be seen of the servers of a context from here: not their disks, which --config leads to."""
    target = whom.target_in(name, context)
    seen = f"the servers of the context {name} are looked at, and this machine: no --config was given"
    advice = "doctor --config FILE, where the adapter runs, looks at its disk and its settings as well"
    checks: dict[str, Check] = {
        "versions": partial(machine.versions, None),
        "configuration": lambda: [Finding("configuration", OK, seen, advice)],
        **_of_machine(None),
    }
    if context.address:
        checks["adapter"] = partial(running.told, target, machine.installed())
    if context.meta:
        section = MetaSection(endpoints=(context.meta,), tls=target.tls)
        checks["Meta Service"] = partial(services.meta_services, section)
    return checks


def _meta_checks(config: MetaConfig, source: Path | None) -> dict[str, Check]:
    store = config.store.path if config.engine == "rocksdb" else None
    checks: dict[str, Check] = {
        "versions": partial(machine.versions, store / "db" if store else None),
        "configuration": partial(_configuration, source, []),
        **_of_places([_Place("store", "store.path", store)] if store else []),
        **_of_machine(store),
        "Meta Service": partial(running.meta_service, store, config.server.listen),
    }
    if config.server.unix_socket:
        checks["Unix socket"] = partial(running.unix_socket_directory, config.server.unix_socket)
    if store is None:
        checks["etcd"] = partial(services.etcd, config.etcd)
    checks |= secrets.files_of(config)
    return checks


def _of_places(places: Sequence[_Place]) -> dict[str, Check]:
    checks: dict[str, Check] = {}
    for name, setting, path, journal_max_bytes in places:
        checks[f"{name} directory"] = partial(disk.directory, f"{name} directory", setting, path)
        checks[f"{name} file system"] = partial(disk.file_system, f"{name} file system", setting, path)
        checks[f"{name} sync"] = partial(disk.sync_time, f"{name} sync", path)
        checks[f"{name} space"] = partial(disk.free_space, f"{name} space", path, journal_max_bytes)
    return checks


def _of_machine(store: Path | None) -> dict[str, Check]:
    return {"open files": partial(machine.open_files, store), "clock": machine.clock}


def _configuration(source: Path | None, doubted: Sequence[str]) -> list[Finding]:
    named = (
        f"{source.absolute()} is valid" if source else f"every setting has its default, in {Path.cwd()}: no --config was given"
    )
    found = [Finding("configuration", WARN, text, "check-config shows all settings") for text in doubted]
    return [Finding("configuration", OK, named), *found]


def _show(found: Sequence[Finding], form: Form) -> None:
    """Print the findings. At a terminal what to do stands below the table, elsewhere in its last column."""
    if form != TABLE:
        rows: Rows[Finding] = listing(form, _COLUMNS, lambda row: row, FIELDS, Finding._asdict)
        with rows:
            for row in found:
                rows.add(row)
        return
    if sys.stdout.isatty():
        print_table(_COLUMNS, (row[:3] for row in found), prose=True)
        _advise([row for row in found if row.advice])
    else:
        print_table({**_COLUMNS, "advice": LEFT}, found)
    counts = ", ".join(f"{sum(row.state == state for row in found)} {state}" for state in (OK, WARN, FAIL))
    note(counts)


def _advise(found: Sequence[Finding]) -> None:
    if found:
        tell("")
    for row in found:
        click.secho(f"{row.state}: ", fg=_COLOURS[row.state], nl=False, color=terminal.colour())
        tell(f"{row.check}: {row.advice}")
