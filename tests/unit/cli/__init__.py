"""Unit tests of adapter/cli."""
