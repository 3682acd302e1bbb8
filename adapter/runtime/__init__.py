"""What every process needs: settings, logs, clocks, retries, sockets, gRPC servers, RocksDB's options. It knows no offsets."""
