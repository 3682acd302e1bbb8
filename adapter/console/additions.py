"""What is added to the reading pages: the modules that know persons and changes. One line for each."""

from collections.abc import Sequence

from adapter.console.access import persons
from adapter.console.access.persons import Access
from adapter.console.changes import pages
from adapter.console.changes.pages import Changes
from adapter.console.config import ConsoleConfig
from adapter.console.parts import Part
from adapter.console.sources.admin_calls import AdminCalls
from adapter.fleet.fleet import FleetApi


def parts_of(settings: ConsoleConfig, fleet: FleetApi, calls: AdminCalls) -> Sequence[Part]:
    """The parts, the outermost middleware first. Raises ConfigError for files that cannot be used."""
    del calls
    server = settings.server
    people = Access(settings.access, https=server.tls is not None, root_path=server.root_path)
    return persons.part(people), pages.part(Changes(people, fleet, settings.fleet))
