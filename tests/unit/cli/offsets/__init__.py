"""Unit tests of adapter/cli/offsets."""
