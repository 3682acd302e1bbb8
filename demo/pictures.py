"""Draws docs/pictures/*.svg: what commands print at a terminal, on a small fleet with load. `python -m demo.pictures`."""

import errno
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.to_thread
from rich.console import Console
from rich.text import Text

from adapter.testing.processes import ServiceProcess
from demo.fleet.processes import Fleet
from demo.fleet.scenario import Group, Scenario, Topic, Way

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
COLUMNS, LINES = 120, 60
WORK_S = 70.0  # of the load before the pictures, so that there is something to see
FOLLOW_S = 5.0  # for the consumers to notice the reset
SHOP = Scenario(
    {topic.name: topic for topic in (Topic("orders", 4, 120.0), Topic("payments", 2, 40.0), Topic("clicks", 4, 900.0))},
    (
        Group("billing", ["orders", "payments"]),
        Group("fraud-check", ["payments"], Way.ONE_STALLS),
        Group("mailer", ["orders"]),
        Group("recommendations", ["clicks"], Way.LAGS),
        Group("search-index", ["orders"]),
        Group("sessions", ["clicks"]),
        Group("tax-export", ["payments"], Way.STOPS),
    ),
)
BEFORE = (
    "offsets reset search-index --shift-by -1500 --execute",
    "groups clone billing billing-test --execute",
    "offsets delete billing-test orders/3 --execute",
)
DRAWN = {
    "groups-list": "groups list",
    "groups-describe": "groups describe fraud-check search-index",
    "offsets-history": "offsets history",
    "offsets-reset": "offsets reset mailer --shift-by -100",
    "doctor": "doctor --config adapter.toml",
}


async def main() -> None:
    """Run the fleet, have an operator move something, and draw."""
    with TemporaryDirectory(prefix="shop-") as name:
        async with Fleet.open(Path(name), SHOP, brokers=1) as fleet, anyio.create_task_group() as tasks:
            await fleet.start()
            await tasks.start(fleet.load.run)
            await anyio.sleep(WORK_S)
            (adapter,) = fleet.adapters
            here = as_by_default(adapter.process)
            for line in BEFORE:
                await anyio.to_thread.run_sync(typed, line, here)
            await anyio.sleep(FOLLOW_S)
            for picture, line in DRAWN.items():
                printed = await anyio.to_thread.run_sync(typed, line, here)
                (PICTURES / f"{picture}.svg").write_text(drawn(line, printed))
            tasks.cancel_scope.cancel()


def as_by_default(process: ServiceProcess) -> Path:
    """The adapter's directory, with its configuration and its socket where they are by default."""
    here = process.directory
    assert process.socket
    (here / "data").mkdir()
    (here / "data" / "adapter.sock").symlink_to(process.socket)
    (here / "adapter.toml").symlink_to(here / "serve.toml")
    return here


def typed(line: str, directory: Path) -> str:
    """What a command prints at a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "adapter", *line.split()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OFFSET_ADAPTER_")}
    environment |= {"XDG_CONFIG_HOME": str(directory), "XDG_STATE_HOME": str(directory)}
    with subprocess.Popen(command, env=environment, cwd=directory, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        return all_of(ours).decode().replace("\r\n", "\n").rstrip()


def all_of(terminal: int) -> bytes:
    """What is printed there, until nobody has it open any more."""
    printed = b""
    try:
        while part := os.read(terminal, 65_536):
            printed += part
    except OSError as error:
        if error.errno != errno.EIO:  # as Linux tells the end of a terminal
            raise
    finally:
        os.close(terminal)
    return printed


def drawn(line: str, printed: str) -> str:
    """A terminal with the command and its output, as SVG, which loads nothing from anywhere."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text(f"$ offset-adapter {line}", style="bold"))
    console.print(Text.from_ansi(printed))
    picture = console.export_svg(title="offset-adapter")
    return re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", picture, flags=re.DOTALL)


if __name__ == "__main__":
    anyio.run(main)
