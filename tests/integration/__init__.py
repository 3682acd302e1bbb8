"""The parts together: real gRPC, real processes."""
