"""Files exchanged with RocketMQ's own classes: `make interop`. Not part of `make test`: it needs Java and RocketMQ's jars."""
