"""Three demos with real offsets and real processes; each ends with a comparison of every key.

`make demo` (`__main__`, `phases`): an adapter, a kill -9, an outage of the Meta Service, a reset.
`make demo-cluster` (`raft*`): the Meta Service on etcd, while each part of it is killed.
`make demo-pipeline` (`pipeline*`): the Spark jobs over a small fleet.
"""
