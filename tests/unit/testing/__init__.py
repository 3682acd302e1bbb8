"""Unit tests of adapter/testing."""
