"""h2spec, the HTTP/2 conformance suite, against the server, in the plain and over TLS: all cases pass, none is skipped.

`make interop` runs it.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest

from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from tests.integration.certificates import Authority

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-adapter-interop"
SECONDS_MAX = 150
ANSWER_S = 10  # how long a case waits for an answer: a machine may be busy
CASES = {"generic": 44, "http2": 95, "hpack": 7}  # of h2spec 2.2.1


class Case(NamedTuple):
    """A case by its section and its text, and what was expected and came instead; nothing when it passed."""

    section: str
    text: str
    wrong: str | None


@pytest.fixture(scope="module", params=["plain", "tls"])
def adapter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """An adapter, without TLS and with it."""
    directory = tmp_path_factory.mktemp("d")
    meta = meta_process(directory / "m")
    server = Authority(directory).issue("server")
    tls = f"[server.tls]\ncert = '{server.cert}'\nkey = '{server.key}'\n" if request.param == "tls" else ""
    adapter = adapter_process(directory / "a", meta.address, extra=tls)
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        yield adapter
        assert adapter.healthy()
        assert adapter.stop() == 0, adapter.log


def cases_of(report: Path) -> list[Case]:
    """What a report in JUnit's form says."""
    cases = []
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - h2spec wrote it just now
        wrong = next((f"{part.tag}: {part.text or ''}" for part in case), None)
        cases.append(Case(case.attrib["package"], case.attrib["classname"], wrong))
    return cases


@pytest.mark.parametrize("section", CASES)
def test_every_case_of_h2spec_passes_and_none_is_skipped(section: str, adapter: ServiceProcess, tmp_path: Path) -> None:
    """Of RFC 7540 and 7541, as h2spec has them."""
    report = tmp_path / "report.xml"
    options = ["--strict", "--port", str(adapter.port), "--timeout", str(ANSWER_S), "--junit-report", str(report)]
    tls = ["--tls", "--insecure"] if "[server.tls]" in adapter.settings else []
    command = [str(CACHE / "go/h2spec"), *options, *tls, section]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert report.exists(), done.stdout + done.stderr
    cases = cases_of(report)
    assert [case for case in cases if case.wrong is not None] == []
    assert len(cases) == CASES[section]
    assert done.returncode == 0, done.stdout
