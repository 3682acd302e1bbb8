"""The options of channels to a Meta Service."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 2**20),
    ("grpc.max_send_message_length", 64 * 2**20),
    # Reconnect soon: a channel in a long backoff would fail the next attempts without trying.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Detect a machine that died without closing its connections; otherwise calls go to it until TCP gives up after minutes.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # `keepalive_timeout_ms` alone ends no connection in grpcio 1.85
    ("grpc.keepalive_permit_without_calls", 1),
)
