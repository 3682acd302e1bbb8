"""What any process here needs: settings, logs, clocks, retries, sockets, gRPC servers, RocksDB's options. Knows no offsets."""
