"""Unit tests of adapter/console/changes."""
