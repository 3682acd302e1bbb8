"""Unit tests of adapter/benchmarks."""
