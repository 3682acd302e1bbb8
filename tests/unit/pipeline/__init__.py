"""Unit tests of adapter/pipeline."""
