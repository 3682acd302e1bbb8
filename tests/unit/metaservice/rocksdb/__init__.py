"""Unit tests of adapter/metaservice/rocksdb."""
