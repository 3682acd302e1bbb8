"""The commands `doctor` and `meta doctor`: check what a process needs, whether it runs or not, and say what to do.

They start nothing and change nothing: no server is started (nor by connecting to a socket that systemd holds), no file is made
that has a name, and nothing in a store is opened but a text file of RocksDB's. The Meta Service, etcd and, if it runs, the
process itself get calls that only read.

`command` chooses the checks; `findings` runs them side by side and bounds their time; `disk`, `machine`, `running`, `services`
and `secrets` hold them. A check is a function without arguments that gives findings.
"""
