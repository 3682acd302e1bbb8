"""TLS files of a client that are renewed while it runs."""

import structlog

from adapter.errors import ConfigError
from adapter.runtime.settings.certificates import PemFiles, read_client_files
from adapter.runtime.settings.config import ClientTls
from adapter.runtime.settings.reading import soon

log = structlog.get_logger(__name__)


def renewed_client_files(tls: ClientTls, name: str, before: PemFiles | None) -> PemFiles | None:
    """Read them again, since certificates are renewed; those of before, with a warning, while the new ones cannot be used."""
    try:
        return soon(lambda: read_client_files(tls, name))
    except ConfigError as error:
        log.warning(name, error=str(error), help="the ones before are used")
        return before
