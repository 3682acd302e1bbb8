"""Unit tests of adapter/metaservice."""
