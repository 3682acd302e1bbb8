"""Offsets in files: RocketMQ's, Kafka's, and our own JSON. A module for each form; `files` chooses between them."""
