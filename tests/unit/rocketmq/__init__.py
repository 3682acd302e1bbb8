"""Unit tests of adapter/rocketmq."""
