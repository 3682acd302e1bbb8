"""Unit tests of adapter/client/offset_store."""
