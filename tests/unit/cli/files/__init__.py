"""Unit tests of adapter/cli/files."""
