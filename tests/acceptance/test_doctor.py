"""`doctor` and `meta doctor` as a user runs them, beside real processes and without: what they see, and that they do nothing."""

import csv
import os
import socket
import subprocess
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from adapter.testing.processes import adapter_process, free_port, meta_process
from tests.acceptance.conftest import Pair, Ran, run
from tests.acceptance.helpers import commit
from tests.dialect import robust_meta
from tests.integration.certificates import Authority

OK, NO, ERROR = 0, 1, 2
FIELDS = ["check", "state", "seen", "advice"]
NOBODY = 65_534


def rows(ran: Ran) -> dict[str, dict[str, str]]:
    """The findings by their check; of several of a check the last one."""
    return {row["check"]: row for row in ran.json}


def failed(ran: Ran) -> set[str]:
    """The checks that failed. Those of this machine's clock, disk and limits may warn, whatever it is."""
    return {row["check"] for row in ran.json if row["state"] == "fail"}


def tree(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Every file and directory below a directory: mode, size, and when it was changed."""
    found = [directory, *directory.rglob("*")]
    return {str(path): (path.lstat().st_mode, path.lstat().st_size, path.lstat().st_mtime_ns) for path in found}


def settings(directory: Path, meta: str = "127.0.0.1:1", extra: str = "") -> Path:
    """The configuration of an adapter that does not run."""
    adapter = adapter_process(directory, meta, extra=extra)
    path = directory / "serve.toml"
    path.write_text(adapter.settings)
    return path


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a short path, for a Unix socket."""
    return tmp_path_factory.mktemp("d")


def test_all_is_well_while_the_adapter_runs_and_when_it_does_not(pair: Pair) -> None:
    """It names the processes, and changes nothing that it looks at."""
    commit(pair, "g", {"s": 1})
    ran = run("doctor", "--config", pair.config, "--json")
    assert (ran.code, failed(ran)) == (OK, set())
    found = rows(ran)
    assert found["adapter"]["state"] == "ok"
    assert found["adapter"]["seen"].startswith(f"process {pair.adapter.pid} runs: ")
    assert f"of the process {pair.adapter.pid}" in found["open files"]["seen"]
    assert f"{pair.meta.address}: of this project, engine rocksdb, version " in found["Meta Service"]["seen"]
    assert found["clocks"]["state"] == "ok"
    assert "the store was written by RocksDB " in found["versions"]["seen"]
    (meta,) = (
        row
        for row in run("meta", "doctor", "--config", pair.meta.directory / "meta.toml", "--json").json
        if "runs" in row["seen"]
    )
    assert (meta["check"], meta["state"]) == ("Meta Service", "ok")
    assert meta["seen"] == f"process {pair.meta.pid} runs, and has the store open"

    pair.adapter.kill()
    pair.meta.kill()
    before = tree(pair.directory)
    ran = run("doctor", "--config", pair.config, "--json")
    assert (ran.code, failed(ran), rows(ran)["adapter"]["seen"]) == (NO, {"Meta Service"}, "it does not run")
    ran = run("meta", "doctor", "--config", pair.meta.directory / "meta.toml", "--json")
    assert (ran.code, failed(ran), rows(ran)["Meta Service"]["seen"]) == (OK, set(), "it does not run")
    assert tree(pair.directory) == before


def test_it_calls_nobody_at_the_addresses_of_the_process(directory: Path) -> None:
    """The sockets are systemd's, for a service that does not run, and would start it."""
    config = settings(directory)
    adapter = config.read_text()
    port = int(adapter.partition("listen = '127.0.0.1:")[2].partition("'")[0])
    with socket.create_server(("127.0.0.1", port)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(directory / "a.sock"))
        unix.listen()
        ran = run("doctor", "--config", config, "--json")
        for held in (tcp, unix):
            held.settimeout(0)
            with pytest.raises(BlockingIOError):
                held.accept()
    row = rows(ran)["adapter"]
    assert (row["state"], f"something listens at port {port}" in row["seen"]) == ("warn", True)


def test_a_meta_service_that_is_away_is_a_failure_unless_another_one_answers(pair: Pair, directory: Path) -> None:
    """By each endpoint."""
    away = f"127.0.0.1:{free_port()}"
    ran = run("doctor", "--config", settings(directory, away), "--json")
    row = rows(ran)["Meta Service"]
    assert (ran.code, row["state"], row["seen"].startswith(f"{away}: UNAVAILABLE: ")) == (NO, "fail", True)
    assert row["advice"].startswith("is it running there? meta.endpoints")
    both = settings(directory, f"{away}', '{pair.meta.address}")
    ran = run("doctor", "--config", both, "--json")
    assert ran.code == OK
    assert [row["state"] for row in ran.json if row["check"] == "Meta Service"] == ["warn", "ok"]


def test_robustmqs_meta_service_is_told_from_ours_and_from_other_servers(pair: Pair, directory: Path) -> None:
    """It knows neither epochs nor our calls; an adapter in its place is no Meta Service at all."""
    with robust_meta() as robust:
        ran = run("doctor", "--config", settings(directory, robust.address), "--json")
        assert not robust.offsets
    row = rows(ran)["Meta Service"]
    assert (ran.code, row["state"], row["seen"].startswith(f"{robust.address}: RobustMQ's")) == (OK, "ok", True)
    ran = run("doctor", "--config", settings(directory, pair.adapter.tcp_address), "--json")
    row = rows(ran)["Meta Service"]
    assert (ran.code, row["state"], "is no Meta Service" in row["seen"]) == (NO, "fail", True)


def test_a_store_that_the_user_cannot_use(directory: Path) -> None:
    """A file of another user in it, or closed to this one. The start would fail with less to go by."""
    config = settings(directory)
    store = directory / "adapter"
    (store / "db").mkdir(parents=True)
    if os.geteuid() == 0:
        (store / "db" / "CURRENT").touch()
        os.chown(store / "db" / "CURRENT", NOBODY, -1)
    else:
        store.chmod(0o500)
    ran = run("doctor", "--config", config, "--json")
    row = rows(ran)["store directory"]
    assert (ran.code, row["state"], "chown -R" in row["advice"]) == (NO, "fail", True)


def test_a_token_that_others_can_read_and_certificates_that_end(directory: Path) -> None:
    """As the adapter would refuse them, before it is restarted with them."""
    authority = Authority(directory)
    issued = authority.issue("adapter")
    old = directory / "old.crt"
    expired = ["openssl", "x509", "-req", "-in", str(directory / "adapter.csr"), "-signkey", str(issued.key), "-days", "-1"]
    subprocess.run([*expired, "-out", str(old)], check=True, capture_output=True)
    token = directory / "token"
    token.write_text("x" * 40)
    token.chmod(0o644)
    extra = f"""[meta.tls]
ca = '{authority.cert}'
cert = '{old}'
key = '{issued.key}'
[admin]
token_file = '{token}'
"""
    config = settings(directory, extra=f"{extra}[rocketmq.tls]\nca = '{token}'\n")
    ran = run("doctor", "--config", config, "--json")
    assert ran.code == NO
    assert {"meta.tls", "admin.token_file", "rocketmq.tls"} <= failed(ran)
    assert rows(ran)["admin.token_file"]["seen"].startswith(f"{token}: others than its owner have access to it: chmod 600")
    (expiry,) = (row for row in ran.json if "EXPIRED" in row["seen"])
    assert (expiry["check"], expiry["seen"].startswith(f"{old}: valid from ")) == ("meta.tls", True)

    token.chmod(0o600)
    config = settings(directory, extra=extra.replace(str(old), str(issued.cert)))
    ran = run("doctor", "--config", config, "--json")
    assert failed(ran) == {"Meta Service"}  # which nobody started
    assert [row["state"] for row in ran.json if row["check"] == "meta.tls"] == ["warn", "warn", "ok"]  # two days are left


def test_files_of_a_collector_and_of_a_fleet(directory: Path) -> None:
    """A start with them fails, so the doctor does. Nothing is asked of an extra that no setting needs."""
    token = directory / "token"
    token.write_text("x" * 40)
    token.chmod(0o644)
    ran = run("doctor", "--config", settings(directory, extra="[telemetry]\n"), "--json")
    assert not {"telemetry", "collector", "journal"} & {*rows(ran)}
    telemetry = f"[telemetry]\nendpoint = 'https://127.0.0.1:1'\nheaders_file = '{token}'\n[telemetry.tls]\nca = '{token}'\n"
    ran = run("doctor", "--config", settings(directory, extra=telemetry), "--json")
    assert failed(ran) == {"Meta Service", "telemetry.headers_file", "telemetry.tls"}
    assert (rows(ran)["telemetry"]["state"], rows(ran)["collector"]["state"]) == ("ok", "warn")

    config = directory / "meta.toml"
    fleet = f"[fleet]\nadapters = ['127.0.0.1:1']\ntoken_file = '{token}'\n[fleet.tls]\nca = '{token}'\n"
    config.write_text(f"{meta_process(directory).settings}\n{fleet}")
    assert failed(run("meta", "doctor", "--config", config, "--json")) == {"fleet.token_file", "fleet.tls"}


def test_a_configuration_that_the_process_would_refuse(directory: Path) -> None:
    """A finding for each setting; what does not depend on it is checked all the same. A file that is absent is one too."""
    config = directory / "bad.toml"
    config.write_text("mode = 'write_sideways'\n[flush]\ninterval_ms = 0\n")
    for command in (["doctor"], ["meta", "doctor"]):
        ran = run(*command, "--config", config, "--json")
        assert (ran.code, failed(ran)) == (NO, {"configuration"})
        assert {"versions", "open files", "clock"} <= {*rows(ran)}
    ran = run("doctor", "--config", config, "--json")
    assert len([row for row in ran.json if row["check"] == "configuration"]) == 2
    ran = run("doctor", "--config", directory / "none.toml", "--json")
    assert (ran.code, "cannot be read" in rows(ran)["configuration"]["seen"]) == (NO, True)
    assert run("doctor", "--no-such-option").code == ERROR


@pytest.fixture
def etcd_config(directory: Path) -> Path:
    """The configuration of a Meta Service before an etcd that is not there."""
    config = directory / "meta.toml"
    metadata, offsets = (f"endpoints = ['127.0.0.1:{free_port()}']" for _ in range(2))
    etcd = f"[etcd.metadata]\n{metadata}\n[[etcd.offsets]]\nname = 'o1'\n{offsets}\n"
    config.write_text(f"engine = 'etcd'\n{meta_process(directory).settings}\n{etcd}")
    return config


def test_an_etcd_that_is_away(etcd_config: Path) -> None:
    """Each Raft group by its name; there is no store of its own to look at."""
    ran = run("meta", "doctor", "--config", etcd_config, "--json")
    assert (ran.code, failed(ran)) == (NO, {"etcd"})
    seen = [row["seen"] for row in ran.json if row["check"] == "etcd"]
    assert [text.partition(":")[0] for text in seen] == ["metadata", "o1"]
    assert all("0 of 1 members answer" in text and text.endswith("; no leader") for text in seen)
    assert "store directory" not in rows(ran)


def test_every_form_has_the_same_findings(directory: Path) -> None:
    """Table, JSON and CSV; how many of each state is said on standard error; no colours in a pipe."""
    config = settings(directory)
    table, as_json, as_csv = (run("doctor", "--config", config, "--output", form) for form in ("table", "json", "csv"))
    assert table.code == as_json.code == as_csv.code == NO
    found: list[dict[str, Any]] = as_json.json
    assert all([*row] == FIELDS for row in found)
    shown = [line.split("\t") for line in table.out.splitlines()]
    read = [*csv.reader(StringIO(as_csv.out))]
    checks = [(row["check"], row["state"]) for row in found]
    assert shown[0] == read[0] == FIELDS
    assert [(row[0], row[1]) for row in shown[1:]] == [(row[0], row[1]) for row in read[1:]] == checks
    counts = ", ".join(f"{sum(state == each for _, state in checks)} {each}" for each in ("ok", "warn", "fail"))
    assert (table.err, as_json.err, as_csv.err) == (f"{counts}\n", "", "")
    assert "\x1b" not in table.out
