"""Unit tests of adapter/runtime/serving/http2."""
