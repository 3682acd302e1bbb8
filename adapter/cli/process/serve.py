"""The command `serve`, and `meta` without a subcommand: run a process until a signal ends it."""

import sys
from pathlib import Path

import click

from adapter.cli import options
from adapter.runtime.process import run_process
from adapter.runtime.settings.config import load_file
from adapter.runtime.telemetry import logs


@click.command()
@options.config
def serve(config: Path | None) -> None:
    """Run the adapter beside a broker.

    Exit code 0 after a complete stop; 1 when the start failed, or dirty offsets remain on disk for the next start.
    """
    from adapter.sidecar import process  # noqa: PLC0415 - each of the two processes loads its own code alone
    from adapter.sidecar.config import AdapterConfig  # noqa: PLC0415

    loaded = load_file(config, AdapterConfig) if config else None
    settings = loaded.settings if loaded else AdapterConfig()
    logs.setup(settings.log)
    sys.exit(run_process(lambda until: process.run(settings, until, loaded)))


def serve_meta(config: Path | None) -> None:
    """Run the Meta Service; does not return."""
    from adapter.metaservice import process  # noqa: PLC0415
    from adapter.metaservice.config import MetaConfig  # noqa: PLC0415

    loaded = load_file(config, MetaConfig) if config else None
    settings = loaded.settings if loaded else MetaConfig()
    logs.setup(settings.log)
    sys.exit(run_process(lambda until: process.run(settings, until, loaded=loaded)))
