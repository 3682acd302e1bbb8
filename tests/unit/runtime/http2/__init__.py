"""Unit tests of adapter/runtime/http2."""
