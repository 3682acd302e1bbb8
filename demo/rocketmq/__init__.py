"""`make demo-rocketmq`: a real RocketMQ broker with real clients, killed again and again, with and without the adapter.

`lab` (the processes: name server, broker, clients, adapter, Meta Service), `designs` (how a broker's offsets are kept: stock,
bridge, plugin), `rounds` (one kill and what it cost), `__main__` (the command and its table), `java/Lab.java` (the clients).
"""
