"""What sends to the configured collector. OpenTelemetry is only loaded if there is one."""

from prometheus_client import CollectorRegistry

from adapter.errors import ConfigError
from adapter.runtime.telemetry.spans import Telemetry, TelemetrySection
from adapter.runtime.version import install_extra


def telemetry_of(section: TelemetrySection, instance: str, registry: CollectorRegistry) -> Telemetry | None:
    """What sends spans and the metrics of a registry to the configured collector; None without one.

    `instance` names this process among its like. Raises ConfigError for bad files, and when the extra is not installed.
    """
    if not section.endpoint:
        return None
    try:
        from adapter.runtime.telemetry.otlp import OtlpTelemetry  # noqa: PLC0415 - takes time to import, and comes with an extra
    except ModuleNotFoundError as error:
        raise ConfigError(f"telemetry.endpoint is set, but {error.name} is not installed: {install_extra('otel')}") from error
    return OtlpTelemetry(section, instance, registry)
