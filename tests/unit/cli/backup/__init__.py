"""Unit tests of adapter/cli/backup."""
