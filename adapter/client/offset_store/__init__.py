"""RocketMQ's OffsetStore for Python consumers and brokers, over the adapter or a local file."""
