"""Unit tests of adapter/client."""
