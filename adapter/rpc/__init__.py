"""The generated wire code. Everything else imports it from here, never from the generated modules.

Each module is imported when its name is first used: a command needs one of them, and each takes time and memory.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adapter.rpc import backup_pb2 as backup_pb
    from adapter.rpc import backup_pb2_grpc as backup_grpc
    from adapter.rpc import etcd_pb2 as etcd_pb
    from adapter.rpc import etcd_pb2_grpc as etcd_grpc
    from adapter.rpc import external_scaler_pb2 as scaler_pb
    from adapter.rpc import external_scaler_pb2_grpc as scaler_grpc
    from adapter.rpc import lag_pb2 as lag_pb
    from adapter.rpc import lag_pb2_grpc as lag_grpc
    from adapter.rpc import meta_service_pb2 as meta_pb
    from adapter.rpc import meta_service_pb2_grpc as meta_grpc
    from adapter.rpc import metadata_pb2 as metadata_pb
    from adapter.rpc import metadata_pb2_grpc as metadata_grpc
    from adapter.rpc import offsets_pb2 as offsets_pb
    from adapter.rpc import offsets_pb2_grpc as offsets_grpc
    from adapter.rpc import robustmq_broker_pb2 as robustmq_pb
    from adapter.rpc import robustmq_broker_pb2_grpc as robustmq_grpc

__all__ = [
    "backup_grpc",
    "backup_pb",
    "etcd_grpc",
    "etcd_pb",
    "lag_grpc",
    "lag_pb",
    "meta_grpc",
    "meta_pb",
    "metadata_grpc",
    "metadata_pb",
    "offsets_grpc",
    "offsets_pb",
    "robustmq_grpc",
    "robustmq_pb",
    "scaler_grpc",
    "scaler_pb",
]

_PROTOS = {
    "backup": "backup",
    "etcd": "etcd",
    "lag": "lag",
    "meta": "meta_service",
    "metadata": "metadata",
    "offsets": "offsets",
    "robustmq": "robustmq_broker",
    "scaler": "external_scaler",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module
    """One of `__all__`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    proto, _, kind = name.rpartition("_")
    module = import_module(f"{__name__}.{_PROTOS[proto]}_pb2{'_grpc' if kind == 'grpc' else ''}")
    globals()[name] = module
    return module
