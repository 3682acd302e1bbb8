"""An OpenTelemetry collector for tests: a gRPC server that decodes what it gets, and others that answer nothing, or nonsense."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

TOLD_S = 0.1  # for which a thread waits before it looks whether it has to end


class Collector:
    """What arrived. `code`: what is answered instead of OK."""

    def __init__(self) -> None:
        self.address = ""
        self.code: grpc.StatusCode | None = None
        self.calls = 0
        self.headers: dict[str, str] = {}
        self.resource: dict[str, str] = {}
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}  # the last push, by name

    def export_spans(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Take spans."""
        self._arrived(context)
        for found in request.resource_spans:
            self.resource = {pair.key: pair.value.string_value for pair in found.resource.attributes}
            for scope in found.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()

    def export_metrics(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Take metrics."""
        self._arrived(context)
        for found in request.resource_metrics:
            for scope in found.scope_metrics:
                self.metrics = {metric.name: metric for metric in scope.metrics}
        return metrics_service_pb2.ExportMetricsServiceResponse()

    def _arrived(self, context: grpc.ServicerContext) -> None:
        self.calls += 1
        self.headers = {name: str(value) for name, value in context.invocation_metadata()}
        if self.code:
            context.abort(self.code, "by the test")


@contextmanager
def collecting(credentials: grpc.ServerCredentials | None = None) -> Iterator[Collector]:
    """A collector on a free port of this machine."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    spans, metrics = trace_service_pb2_grpc.TraceServiceServicer(), metrics_service_pb2_grpc.MetricsServiceServicer()
    spans.Export, metrics.Export = collector.export_spans, collector.export_metrics
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(spans, server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(metrics, server)
    anywhere = "localhost:0"
    port = server.add_secure_port(anywhere, credentials) if credentials else server.add_insecure_port(anywhere)
    collector.address = f"localhost:{port}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


@contextmanager
def not_a_collector(answer: bytes) -> Iterator[str]:
    """The address of a server that accepts connections, and answers each with these bytes (none: nothing), whatever it gets."""
    ending = threading.Event()
    connections: list[socket.socket] = []

    def serve(listener: socket.socket) -> None:
        listener.settimeout(TOLD_S)
        while not ending.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connections.append(connection)
            if answer:
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ending.set()
            thread.join()
            for connection in connections:
                connection.close()
