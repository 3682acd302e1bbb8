"""The jobs `import` and `export`: offset files of RocketMQ and Kafka."""
