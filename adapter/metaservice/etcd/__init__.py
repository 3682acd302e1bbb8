"""A Meta Service that keeps everything in etcd: offsets in any number of Raft groups, metadata in one of its own."""
