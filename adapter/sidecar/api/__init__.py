"""The sidecar's gRPC services: requests are parsed and checked here, and answered."""
