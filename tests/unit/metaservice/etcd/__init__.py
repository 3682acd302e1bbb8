"""Unit tests of adapter/metaservice/etcd."""
