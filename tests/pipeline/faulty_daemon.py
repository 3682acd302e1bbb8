"""Spark's daemon that forks Python workers, with the faults of `faults.py`."""

from pyspark.daemon import manager

from tests.pipeline import faults

if __name__ == "__main__":
    faults.install_in_worker()
    manager()
