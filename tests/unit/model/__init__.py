"""Unit tests of adapter/model."""
