"""Unit tests of adapter/cli/groups."""
