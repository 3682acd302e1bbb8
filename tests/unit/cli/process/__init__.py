"""Unit tests of adapter/cli/process."""
