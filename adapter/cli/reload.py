"""The command `reload`: the adapter reads its configuration file again; shows what changed, and what needs a restart."""

import click

from adapter.cli import options
from adapter.cli.connection import Target, connected, run
from adapter.cli.output import as_dict, tell, warn
from adapter.cli.table import LEFT, print_json, print_table
from adapter.runtime.wording import counted


@click.command("reload")
@options.target
@options.as_json
def reload(target: Target, *, as_json: bool) -> None:
    """Have the adapter read its configuration file, certificates and token again, as SIGHUP does.

    Shows what changed. Settings that need a restart are named, and stay as they were. A file with an error changes nothing:
    exit code 2.
    """
    run(_reload, target, as_json)


async def _reload(target: Target, as_json: bool) -> None:
    async with connected(target) as client:
        reply = await client.reload()
    if as_json:
        print_json(as_dict(reply))
    else:
        if reply.changed:
            rows = ((change.field, change.old, change.new) for change in reply.changed)
            print_table({"setting": LEFT, "before": LEFT, "now": LEFT}, rows)
        tell(f"{counted(len(reply.changed), 'setting')} changed")
    for name in reply.needs_restart:
        warn(f"{name}: needs a restart of the adapter; the value of before is in force")
