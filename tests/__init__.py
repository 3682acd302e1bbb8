"""Tests: unit, contract (any engine), integration (real gRPC), durability (real faults), acceptance (as a user)."""
