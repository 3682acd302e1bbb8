"""The external scaler for KEDA over many adapters, in the Meta Service: it runs only if `fleet.adapters` is set."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from adapter.fleet.fleet import Fleet
from adapter.fleet.fleet_source import FleetLagSource
from adapter.fleet.scaler import ExternalScaler
from adapter.fleet.section import FleetSection


@asynccontextmanager
async def scaling(section: FleetSection) -> AsyncIterator[ExternalScaler]:
    """Follow the adapters, and answer KEDA by their lag. Raises ConfigError for files that cannot be used."""
    async with Fleet.open(section) as fleet:
        scaler = ExternalScaler(FleetLagSource(fleet))
        try:
            yield scaler
        finally:
            scaler.end_streams()
