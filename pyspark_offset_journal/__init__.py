"""Registers the data source `offset-journal`: Spark imports installed modules named pyspark_* and uses their `DefaultSource`."""

from adapter.pipeline.journal.source import JournalDataSource as DefaultSource

__all__ = ["DefaultSource"]
