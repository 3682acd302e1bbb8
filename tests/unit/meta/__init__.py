"""Unit tests of adapter/meta."""
