"""The Meta Service: the cluster's store of consumer offsets, behind one `Engine` protocol."""
