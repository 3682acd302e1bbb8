"""A client of etcd: what the Meta Service needs of it, over stubs made from etcd's own wire contract."""
