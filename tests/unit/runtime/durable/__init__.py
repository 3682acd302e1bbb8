"""Unit tests of adapter/runtime/durable."""
