"""Spark looks for modules named pyspark_*: by this one it knows the data source `offsets`."""

from adapter.pipeline.source import OffsetsDataSource as DefaultSource

__all__ = ["DefaultSource"]
