"""Unit tests of adapter/console/access."""
