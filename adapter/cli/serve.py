"""The command `serve`, and `meta` without a subcommand: run a process until a signal ends it."""

import sys
from pathlib import Path

import click

from adapter.cli import options
from adapter.metaservice import process as meta_process
from adapter.metaservice.config import MetaConfig
from adapter.runtime import logs
from adapter.runtime.config import load
from adapter.runtime.process import run_process
from adapter.sidecar import process
from adapter.sidecar.config import AdapterConfig


@click.command()
@options.config
def serve(config: Path | None) -> None:
    """Run the adapter beside a broker.

    Exit code 0 after a complete stop; 1 when the start failed, or dirty offsets remain on disk for the next start.
    """
    settings = load(config, AdapterConfig) if config else AdapterConfig()
    logs.setup(settings.log)
    sys.exit(run_process(lambda until: process.run(settings, until)))


def serve_meta(config: Path | None) -> None:
    """Run the Meta Service; does not return."""
    settings = load(config, MetaConfig) if config else MetaConfig()
    logs.setup(settings.log)
    sys.exit(run_process(lambda until: meta_process.run(settings, until)))
