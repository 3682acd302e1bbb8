"""When Spark offers filters to the readers of our data sources."""

import sys

_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def filters_are_offered() -> bool:
    """Whether this process offers filters to readers.

    Spark has a separate worker for it. In the other workers it refuses a reader with `pushFilters` while
    spark.sql.python.filterPushdown.enabled is off.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return _WORKER in sys.modules or (main is not None and main.name == _WORKER)
