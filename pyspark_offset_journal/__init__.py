"""Spark looks for modules named pyspark_*: by this one it knows the data source `offset-journal`."""

from adapter.pipeline.journal_source import JournalDataSource as DefaultSource

__all__ = ["DefaultSource"]
