"""One Spark session for all tests here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from adapter.pipeline.session import spark_session
from tests.pipeline.jvm import SHORT_LIVED


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores, as the CI machine has."""
    settings = {
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.authenticate.socketTimeout": "5m",  # until a worker answers first; after 15 s a busy machine fails
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    session = spark_session("tests", "local[2]", settings)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """An empty directory for journals."""
    path = tmp_path / "journal"
    path.mkdir()
    return path
