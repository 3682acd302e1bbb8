"""Unit tests of adapter/cli/top."""
