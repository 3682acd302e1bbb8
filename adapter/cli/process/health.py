"""The command `health`. Container probes run it every few seconds, so it imports gRPC and little else."""

import asyncio
import sys

import click
import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapter.cli import options
from adapter.cli.connection import Target
from adapter.cli.output import tell
from adapter.runtime.channels import open_channel

TIMEOUT_S = 2.0


@click.command()
@options.target_without_token
def health(target: Target) -> None:
    """Exit with 0 when the adapter or Meta Service at --address is SERVING, else with 1: for container health checks."""
    sys.exit(0 if asyncio.run(_serves(target)) else 1)


async def _serves(target: Target) -> bool:
    """Print the health of the server as a whole; True when it is SERVING."""
    async with open_channel(target.address, target.tls, ()) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            tell(f"{target.address}: {error.code().name}: {error.details()}")
            return False
    tell(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)
