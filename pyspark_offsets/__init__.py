"""Registers the data source `offsets`: Spark imports installed modules named pyspark_* and uses their `DefaultSource`."""

from adapter.pipeline.offsets.source import OffsetsDataSource as DefaultSource

__all__ = ["DefaultSource"]
