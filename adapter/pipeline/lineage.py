"""OpenLineage: tells at the begin and the end of a job's run what it reads and writes.

Where to is for OpenLineage's own settings in the environment: OPENLINEAGE_URL, OPENLINEAGE_CONFIG or OPENLINEAGE__TRANSPORT__*.
Without one of them nothing is told, and its package `openlineage-python` is not needed. A job never fails because of it.

Spark's own listener sees none of this: the jobs read and write in Python.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

import structlog

from adapter import __version__
from adapter.errors import AdapterError
from adapter.pipeline.config import JobConfig
from adapter.pipeline.places import Place

log = structlog.get_logger(__name__)

_CONFIGURED_BY = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT")
_PRODUCER = f"offset-adapter/{__version__}"
_S3 = {"s3": "s3", "s3a": "s3", "s3n": "s3"}
# What is in the output of each job.
_LAG = ("shards", "groups", "rewinds", "rejects")
_HISTORY = ("groups", "rewinds", "rejects")
_TABLES = {
    "lag": _LAG,
    "reconcile": ("differences", "plan", "applied"),
    "import": ("preview", "rejects", "applied"),
    "export": ("files", "rejects"),
    "report": (),
}

# A namespace and a name, as OpenLineage's naming has them: those of the same thing are the same in all tools.
Dataset = tuple[str, str]


@contextmanager
def told(job: str, config: JobConfig, *, apply: bool = False) -> Iterator[None]:
    """Tell of a run of a job: its begin, and its end or failure. `apply`: it changes the Meta Service."""
    run = _Run.begun(job, config, apply=apply)
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
            return [dataset(config.report.tables / name) for name in _LAG]


def writes(job: str, config: JobConfig, *, apply: bool = False) -> list[Dataset]:
    """What a job writes."""
    output: Place = getattr(config, "import_" if job == "import" else job).output
    written = [dataset(output / name) for name in _TABLES[job]] or [dataset(output)]
    if job == "lag" and config.lag.history.delta:
        written += [dataset(config.lag.history.delta / name) for name in _HISTORY]
    return [*written, _meta(config)] if apply else written


def dataset(place: Place) -> Dataset:
    """A place by OpenLineage's naming. It has no credentials."""
    if not place.is_remote:
        return "file", place.url
    parts = urlsplit(str(place))  # without them
    host, path = parts.netloc, unquote(parts.path)
    if parts.scheme in _S3 or parts.scheme == "gs":
        return f"{_S3.get(parts.scheme, parts.scheme)}://{host}", path.lstrip("/") or "/"
    return f"{parts.scheme}://{host}", path or "/"


def _meta(config: JobConfig) -> Dataset:
    """The offsets of a cluster in the Meta Service, by its first address."""
    return f"offset-adapter://{config.meta.endpoints[0]}", config.meta.cluster


class _Run:
    """One run of a job; without a client nobody hears of it."""

    def __init__(self, client: Any, job: str, inputs: Sequence[Dataset], outputs: Sequence[Dataset]) -> None:  # noqa: ANN401
        self._client, self._job, self._inputs, self._outputs = client, job, inputs, outputs
        self._id = str(import_module("openlineage.client.uuid").generate_new_uuid()) if client else ""

    @classmethod
    def begun(cls, job: str, config: JobConfig, *, apply: bool) -> "_Run":
        """Its begin is told."""
        run = cls(_client(), job, reads(job, config), writes(job, config, apply=apply))
        run.tell("START")
        return run

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
        if self._job != "lag" or table not in _LAG:
            return {}
        library = import_module("openlineage.client.generated.schema_dataset")
        schema = getattr(import_module("adapter.pipeline.lag.schemas"), table.upper())  # needs the extra `spark`
        fields = [
            library.SchemaDatasetFacetFields(field.name, _type(field), field.metadata[b"comment"].decode()) for field in schema
        ]
        return {"schema": library.SchemaDatasetFacet(fields)}


def is_configured(environment: Mapping[str, str]) -> bool:
    """Whether OpenLineage's settings in the environment say where its events go."""
    return any(name.startswith(_CONFIGURED_BY) for name, value in environment.items() if value)


def _type(field: Any) -> str:  # noqa: ANN401 - pyarrow has no types
    """The type of a column in the files, where names are strings."""
    return str(getattr(field.type, "value_type", field.type))


def _client() -> Any:  # noqa: ANN401 - the library may not be installed
    if not is_configured(os.environ):
        return None
    try:
        return import_module("openlineage.client").OpenLineageClient()
    except ModuleNotFoundError as error:
        log.warning("lineage.not_told", error=f"{error.name} is not installed: pip install 'offset-adapter[openlineage]'")
    except Exception as error:  # noqa: BLE001 - of settings that it does not take
        log.warning("lineage.not_told", error=f"{type(error).__name__}: {error}")
    return None
