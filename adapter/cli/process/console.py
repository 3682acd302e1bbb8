"""The command `console`: the web page over a fleet of adapters and their Meta Service."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from adapter.cli import options
from adapter.errors import ConfigError
from adapter.runtime.process import run_process
from adapter.runtime.settings.config import load, load_file
from adapter.runtime.telemetry import logs
from adapter.runtime.version import install_extra

if TYPE_CHECKING:  # needs the extra `console`
    from adapter.console.sources.meta_instances import RaftOpening


@click.command()
@options.config
def console(config: Path | None) -> None:
    """Run the console: a web page that shows adapters, Meta Service and groups. Its settings are in config/console.toml.

    Exit code 0 after a complete stop; 1 when the start failed.
    """
    try:
        from adapter.console import process  # noqa: PLC0415 - needs the extra `console`
        from adapter.console.config import ConsoleConfig  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"the console needs {error.name}, which is not installed: {install_extra('console')}") from error
    loaded = load_file(config, ConsoleConfig) if config else None
    settings = loaded.settings if loaded else ConsoleConfig()
    logs.setup(settings.log)
    raft = raft_of(settings.meta.raft_config) if settings.meta.raft_config else None
    sys.exit(run_process(lambda until: process.run(settings, until, raft, loaded=loaded)))


def raft_of(config: Path) -> "RaftOpening":
    """Opens what reads the Raft groups that a Meta Service's file names, as `meta placement show` does. Raises ConfigError."""
    from adapter.cli.meta.placement import as_dict  # noqa: PLC0415 - takes time to import
    from adapter.console.sources.meta_instances import RaftSituation  # noqa: PLC0415 - needs the extra `console`
    from adapter.metaservice.config import MetaConfig  # noqa: PLC0415
    from adapter.metaservice.etcd.leader_balancer import Leaders, opened  # noqa: PLC0415

    section = load(config, MetaConfig).etcd

    class Raft:
        def __init__(self, leaders: Leaders) -> None:
            self._leaders = leaders

        async def look(self) -> RaftSituation:
            found = as_dict(await self._leaders.look())
            return RaftSituation(found["raft_groups"], found["problems"])

    @asynccontextmanager
    async def opening() -> AsyncIterator[Raft]:
        async with opened(section) as leaders:
            yield Raft(leaders)

    return opening
