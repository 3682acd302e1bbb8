"""The command `reload`: the adapter reads its configuration file again; shows what changed, and what needs a restart."""

import click

from adapter.cli import options
from adapter.cli.connection import Target, connected, run
from adapter.cli.output import as_dict, tell, warn
from adapter.cli.table import LEFT, print_json, print_table
from adapter.runtime.wording import counted


@click.command("reload")
@options.target
@click.option("--allow-defaults", is_flag=True, help="Settings that were taken out of the file get their defaults.")
@options.as_json
def reload(target: Target, *, allow_defaults: bool, as_json: bool) -> None:
    """Have the adapter read its configuration file, certificates and token again, as SIGHUP does.

    Shows what changed. Settings that need a restart are named, and stay as they were. A file with an error changes nothing:
    exit code 2. So does a file that lacks a setting which it had: it may be cut off.
    """
    run(_reload, target, allow_defaults, as_json)


async def _reload(target: Target, allow_defaults: bool, as_json: bool) -> None:
    async with connected(target) as client:
        reply = await client.reload(allow_defaults=allow_defaults)
    if as_json:
        print_json(as_dict(reply))
    else:
        if reply.changed:
            rows = ((change.field, change.old, change.new) for change in reply.changed)
            print_table({"setting": LEFT, "before": LEFT, "now": LEFT}, rows)
        tell(f"{counted(len(reply.changed), 'setting')} changed")
    for name in reply.needs_restart:
        warn(f"{name}: needs a restart of the adapter; the value of before is in force")
