"""OpenLineage: tells at the begin and the end of a job's run what it reads and writes.

Where to is for OpenLineage's own settings in the environment: OPENLINEAGE_URL, OPENLINEAGE_CONFIG or OPENLINEAGE__TRANSPORT__*.
Without one of them nothing is told, and its package `openlineage-python` is not needed. A job never fails because of it.

Spark's own listener sees none of this: the jobs read and write in Python.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

import structlog

from adapter import __version__
from adapter.errors import AdapterError
from adapter.pipeline.config import JobConfig
from adapter.pipeline.lag import history, schemas
from adapter.pipeline.lag.files import TABLES
from adapter.pipeline.places import Place
from adapter.runtime.version import install_extra

log = structlog.get_logger(__name__)

_CONFIGURED_BY = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT")
_PRODUCER = f"offset-adapter/{__version__}"
# What is in the output of each job; of `report`, one page.
_WRITTEN = {
    "lag": TABLES,
    "reconcile": ("differences", "plan", "applied"),
    "import": ("preview", "rejects", "applied"),
    "export": ("files", "rejects"),
}

# A namespace and a name, as OpenLineage's naming has them: those of the same thing are the same in all tools.
Dataset = tuple[str, str]


@contextmanager
def told(job: str, config: JobConfig, *, apply: bool = False) -> Iterator[None]:
    """Tell of a run of a job: its begin, and its end or failure. `apply`: it changes the Meta Service."""
    client = _client()
    if client is None:
        yield
        return
    run = _Run(client, job, reads(job, config), writes(job, config, apply=apply))
    run.tell("START")
    try:
        yield
    except BaseException as error:
        run.tell("FAIL", str(error) if isinstance(error, AdapterError) else type(error).__name__)
        raise
    run.tell("COMPLETE")


def reads(job: str, config: JobConfig) -> list[Dataset]:
    """What a job reads."""
    match job:
        case "lag":
            return [dataset(place) for place in config.lag.journals]
        case "reconcile":
            return [*(dataset(place) for place in config.reconcile.snapshots), _meta(config)]
        case "import":
            return [dataset(place) for place in config.import_.files]
        case "export":
            return [_meta(config)]
        case _:
            return [dataset(config.report.tables / name) for name in TABLES]


def writes(job: str, config: JobConfig, *, apply: bool = False) -> list[Dataset]:
    """What a job writes."""
    output: Place = getattr(config, "import_" if job == "import" else job).output
    written = [dataset(output / name) for name in _WRITTEN[job]] if job in _WRITTEN else [dataset(output)]
    if job == "lag" and config.lag.history.delta:
        written += [dataset(config.lag.history.delta / name) for name in history.TABLES]
    return [*written, _meta(config)] if apply else written


def dataset(place: Place) -> Dataset:
    """A place by OpenLineage's naming. It has no credentials."""
    if not place.is_remote:
        return place.scheme, place.url
    parts = urlsplit(str(place))  # without them
    path = unquote(parts.path)
    buckets = place.scheme in {"s3", "gs"}  # whose keys begin with no slash
    return f"{place.scheme}://{parts.netloc}", (path.lstrip("/") if buckets else path) or "/"


def _meta(config: JobConfig) -> Dataset:
    """The offsets of a cluster in the Meta Service, by its first address."""
    return f"offset-adapter://{config.meta.endpoints[0]}", config.meta.cluster


class _Run:
    """One run of a job."""

    def __init__(self, client: Any, job: str, inputs: Sequence[Dataset], outputs: Sequence[Dataset]) -> None:  # noqa: ANN401
        self._client, self._job, self._inputs, self._outputs = client, job, inputs, outputs
        self._id = str(import_module("openlineage.client.uuid").generate_new_uuid())

    def tell(self, what: str, problem: str = "") -> None:
        """Send an event. `problem`: why it failed."""
        if not self._client:
            return
        try:
            self._client.emit(self._event(what, problem))
            if what != "START":
                self._client.close()
        except Exception as error:  # noqa: BLE001 - each transport has errors of its own
            log.warning("lineage.not_told", job=self._job, state=what, error=f"{type(error).__name__}: {error}")
            self._client = None  # so a catalog that is away holds a job up once, for as long as its settings say

    def _event(self, what: str, problem: str) -> Any:  # noqa: ANN401
        v2, facets = import_module("openlineage.client.event_v2"), "openlineage.client.generated"
        failed = import_module(f"{facets}.error_message_run").ErrorMessageRunFacet
        kind = import_module(f"{facets}.job_type_job").JobTypeJobFacet
        processing = "STREAMING" if self._job == "lag" else "BATCH"
        return v2.RunEvent(
            eventTime=datetime.now(UTC).isoformat(),
            producer=_PRODUCER,
            eventType=v2.RunState[what],
            run=v2.Run(self._id, facets={"errorMessage": failed(problem, "PYTHON")} if problem else {}),
            job=v2.Job(
                os.environ.get("OPENLINEAGE_NAMESPACE", "default"),
                f"offset-adapter.{self._job}",
                facets={"jobType": kind(processing, "OFFSET_ADAPTER", "JOB")},
            ),
            inputs=[v2.InputDataset(namespace, name) for namespace, name in self._inputs],
            outputs=[v2.OutputDataset(namespace, name, facets=self._facets(name)) for namespace, name in self._outputs],
        )

    def _facets(self, name: str) -> dict[str, Any]:
        """The columns of a table of `lag`, with what they mean."""
        table = name.rpartition("/")[2]
        if self._job != "lag" or table not in TABLES:
            return {}
        library = import_module("openlineage.client.generated.schema_dataset")
        schema = getattr(schemas, table.upper())
        fields = [
            library.SchemaDatasetFacetFields(field.name, _type(field), field.metadata[b"comment"].decode()) for field in schema
        ]
        return {"schema": library.SchemaDatasetFacet(fields)}


def _type(field: Any) -> str:  # noqa: ANN401 - pyarrow has no types
    """The type of a column in the files, where names are strings."""
    return str(getattr(field.type, "value_type", field.type))


def _client() -> Any:  # noqa: ANN401 - the library may not be installed
    if not any(name.startswith(_CONFIGURED_BY) for name, value in os.environ.items() if value):
        return None
    try:
        return import_module("openlineage.client").OpenLineageClient()
    except ModuleNotFoundError as error:
        log.warning("lineage.not_told", error=f"{error.name} is not installed: {install_extra('openlineage')}")
    except Exception as error:  # noqa: BLE001 - of settings that it does not take
        log.warning("lineage.not_told", error=f"{type(error).__name__}: {error}")
    return None
