"""What OpenLineage is told of the jobs, by its own library, into a file."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from adapter.errors import ConfigError
from adapter.pipeline import lineage
from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import Switches, run_plain_job
from adapter.pipeline.lag.files import TABLES
from adapter.pipeline.lag.schemas import GROUPS
from adapter.pipeline.places import Place
from adapter.runtime.settings.config import parse
from tests.pipeline import lag_tables

S3 = "s3a://KEY:SECRET@bucket/a b?endpoint_override=127.0.0.1:1&scheme=http"
META = ("offset-adapter://meta:9530", "c")

Events = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Events:
    """Those that were told, in order."""
    path = tmp_path / "events"
    settings = {"TYPE": "file", "LOG_FILE_PATH": str(path), "APPEND": "true"}
    for name, value in settings.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "offsets")
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def config(**sections: Mapping[str, object]) -> JobConfig:
    """A job.toml."""
    return parse({"meta": {"endpoints": ["meta:9530", "other:9530"], "cluster": "c"}, **sections}, JobConfig, source="test")


def test_a_run_tells_its_begin_and_its_end_with_what_it_reads_and_writes(events: Events) -> None:
    """The tables of `lag` with their columns, and no credentials."""
    section = {"journals": [S3, "/data/journal"], "output": "/data/lag", "history": {"delta": f"{S3}&region=r"}}
    with lineage.told("lag", config(lag=section)):
        begun = events()
    whole = events()
    assert [event["eventType"] for event in begun] == ["START"]
    assert [event["eventType"] for event in whole] == ["START", "COMPLETE"]
    assert len({event["run"]["runId"] for event in whole}) == 1
    event = whole[-1]
    assert (event["job"]["namespace"], event["job"]["name"]) == ("offsets", "offset-adapter.lag")
    assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert named(event["inputs"]) == [("s3://bucket", "a b"), ("file", "/data/journal")]
    history = [("s3://bucket", f"a b/{name}") for name in ("groups", "rewinds", "rejects")]
    assert named(event["outputs"]) == [*(("file", f"/data/lag/{name}") for name in TABLES), *history]
    (fields,) = [each["facets"]["schema"]["fields"] for each in event["outputs"] if each["name"] == "/data/lag/groups"]
    assert [field["name"] for field in fields] == GROUPS.names
    assert {"name": "total_lag", "type": "int64"}.items() <= next(each for each in fields if each["name"] == "total_lag").items()
    assert all(field["description"] for field in fields)
    assert "SECRET" not in json.dumps(whole)


def named(datasets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Namespaces and names."""
    return [(each["namespace"], each["name"]) for each in datasets]


def test_a_failure_is_told_with_its_reason(events: Events) -> None:
    """That of an unexpected error may have anything in it: its kind is told alone."""
    for error in (ConfigError("[export] output = '/x': no"), KeyError("SECRET")):
        with pytest.raises(type(error)), lineage.told("export", config()):
            raise error
    told = [event["run"]["facets"]["errorMessage"]["message"] for event in events() if event["eventType"] == "FAIL"]
    assert told == ["[export] output = '/x': no", "KeyError"]


@pytest.mark.parametrize(
    ("job", "apply", "reads", "writes"),
    [
        (
            "reconcile",
            True,
            [("file", "/in"), META],
            [*(("file", f"/out/{n}") for n in ("differences", "plan", "applied")), META],
        ),
        ("reconcile", False, [("file", "/in"), META], [("file", f"/out/{n}") for n in ("differences", "plan", "applied")]),
        ("import", True, [("file", "/in")], [*(("file", f"/out/{n}") for n in ("preview", "rejects", "applied")), META]),
        ("export", False, [META], [("file", "/out/files"), ("file", "/out/rejects")]),
        ("report", False, [("file", f"/in/{name}") for name in TABLES], [("file", "/out")]),
    ],
)
def test_each_job_names_what_it_reads_and_writes(
    job: str, apply: bool, reads: list[lineage.Dataset], writes: list[lineage.Dataset]
) -> None:
    """The Meta Service too, which changes with --apply alone."""
    inputs: dict[str, dict[str, object]] = {
        "reconcile": {"snapshots": ["/in"]},
        "import": {"files": ["/in"]},
        "report": {"tables": "/in"},
        "export": {},
    }
    settings = config(**{job: {**inputs[job], "output": "/out"}})
    assert lineage.reads(job, settings) == reads
    assert lineage.writes(job, settings, apply=apply) == writes


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/a b", ("file", "/a b")),
        ("s3://bucket/a%20b/c", ("s3://bucket", "a b/c")),
        ("gs://anonymous@bucket/a", ("gs://bucket", "a")),
        ("gs://bucket", ("gs://bucket", "/")),
        ("hdfs://host:8020/a/b", ("hdfs://host:8020", "/a/b")),
        ("abfss://container@account.dfs.core.windows.net/a", ("abfss://container@account.dfs.core.windows.net", "/a")),
    ],
)
def test_places_have_the_names_of_openlineage(url: str, expected: lineage.Dataset) -> None:
    """So that what another tool reads is found to be the same; a user and a password are no part of them."""
    assert lineage.dataset(Place.of(url)) == expected


def test_a_job_tells_of_itself_unless_it_is_a_dry_run(events: Events, tmp_path: Path) -> None:
    """The report, as the command runs it."""
    lag_tables.fleet(tmp_path / "lag", 3)
    settings = config(report={"tables": str(tmp_path / "lag"), "output": str(tmp_path / "report")})
    run_plain_job("report", settings, Switches(dry_run=True))
    assert events() == []
    run_plain_job("report", settings, Switches())
    assert [event["job"]["name"] for event in events()] == ["offset-adapter.report"] * 2


@pytest.mark.parametrize(
    "wrong", [{"OPENLINEAGE__TRANSPORT__TYPE": "nonsense"}, {"OPENLINEAGE__TRANSPORT__LOG_FILE_PATH": "/nowhere/at/all"}]
)
def test_a_job_does_not_fail_when_nobody_can_be_told(
    events: Events, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str]
) -> None:
    """Neither with wrong settings, nor when a catalog does not take it: then it is not asked again at the end."""
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    with capture_logs() as logs, lineage.told("export", config()):
        pass
    assert [entry["event"] for entry in logs] == ["lineage.not_told"]
    assert events() == []


def test_without_settings_the_library_is_not_needed_and_with_them_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on most machines."""

    def missing(name: str) -> NoReturn:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(lineage, "import_module", missing)
    with capture_logs() as logs, lineage.told("export", config()):
        pass
    assert logs == []
    monkeypatch.setenv("OPENLINEAGE_URL", "http://marquez:5000")
    with capture_logs() as logs, lineage.told("export", config()):
        pass
    assert "pip install 'openlineage-python<2,>=1.54'" in logs[0]["error"]
