"""The generated wire code. Everything else imports it from here, never from the generated modules."""

from adapter.rpc import etcd_pb2 as etcd_pb
from adapter.rpc import etcd_pb2_grpc as etcd_grpc
from adapter.rpc import meta_service_pb2 as meta_pb
from adapter.rpc import meta_service_pb2_grpc as meta_grpc
from adapter.rpc import metadata_pb2 as metadata_pb
from adapter.rpc import metadata_pb2_grpc as metadata_grpc
from adapter.rpc import offsets_pb2 as offsets_pb
from adapter.rpc import offsets_pb2_grpc as offsets_grpc

__all__ = [
    "etcd_grpc",
    "etcd_pb",
    "meta_grpc",
    "meta_pb",
    "metadata_grpc",
    "metadata_pb",
    "offsets_grpc",
    "offsets_pb",
]
