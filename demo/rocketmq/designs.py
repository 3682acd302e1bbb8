"""How the offsets of a broker are kept: by itself, by the bridge, or by the plugin. A new way is one more entry here."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGIN_JARS = ROOT / "integrations/rocketmq/target"


class DesignError(Exception):
    """A design cannot be run here. The message says what is missing."""


@dataclass(frozen=True)
class Design:
    """`broker_settings` are lines of broker.conf, `adapter_settings` sections of adapter.toml; both may name {socket}, {broker}.

    `adapter`: whether an adapter and a Meta Service run beside the broker. `jars` go behind the broker's own. `met`: what the
    adapter logs when a broker that came back has its offsets again; empty if it has them before its port is open.
    """

    name: str
    adapter: bool = True
    broker_settings: str = ""
    adapter_settings: str = ""
    jars: tuple[Path, ...] = ()
    met: str = ""


def design_of(name: str) -> Design:
    """The design of a name. Raises DesignError."""
    if name == "stock":
        return Design(name, adapter=False)
    if name == "bridge":
        return Design(name, adapter_settings='[rocketmq]\nbroker = "{broker}"\n', met="rocketmq.following")
    ways = {"plugin": "offsetAdapterAck=async", "plugin-sync": "offsetAdapterAck=sync\noffsetAdapterAbsent=refuse"}
    jars = tuple(jar for jar in sorted(PLUGIN_JARS.glob("*.jar")) if not jar.name.endswith(("-sources.jar", "-tests.jar")))
    if not jars:
        raise DesignError(f"the plugin is not built: no jar in {PLUGIN_JARS}; make plugin builds it")
    return Design(name, broker_settings=f"offsetAdapterAddress=unix:{{socket}}\n{ways[name]}\n", jars=jars)


NAMES = ("stock", "bridge", "plugin", "plugin-sync")
