"""Unit tests of adapter/formats."""
