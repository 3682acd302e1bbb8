"""Unit tests of adapter/runtime/serving."""
