"""Unit tests of adapter/console/views."""
