"""`meta kv` on a real Meta Service: what a person sees, what a script gets, and the exit codes."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from adapter.cli.connection import CallError
from adapter.cli.main import cli
from adapter.errors import InvalidInputError
from adapter.testing.processes import ServiceProcess, ended, free_port, meta_process
from tests.acceptance.conftest import run

OK, NO, ERROR = 0, 1, 2


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A Meta Service for tests that each use keys of their own."""
    meta = meta_process(tmp_path_factory.mktemp("kv"))
    with ended(meta):
        meta.start()
        yield meta


class Kv:
    """The commands, in this process."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Result:
        """Run one. Raises what it raises."""
        environment = {"OFFSET_META_ADDRESS": self._address, "COLUMNS": "200"}
        return CliRunner().invoke(cli, ["meta", "kv", *arguments], input=stdin, env=environment, catch_exceptions=False)


@pytest.fixture
def kv(service: ServiceProcess) -> Kv:
    """On that service."""
    return Kv(service.address)


def test_the_command_puts_gets_lists_and_deletes(service: ServiceProcess) -> None:
    """As a person would type it."""
    where = ("--address", service.address)
    written = run("meta", "kv", "put", "shown/a", "one\x1b[31m", *where)
    assert (written.code, written.out.startswith("written, revision ")) == (OK, True)
    shown = run("meta", "kv", "get", "shown/a", *where)
    assert (shown.code, "key revision bytes value" in shown.words) == (OK, True)
    assert f"shown/a {written.out.split()[-1]} 8 one\\x1b[31m" in shown.words


def test_exit_codes_tell_what_is_absent(kv: Kv) -> None:
    """0 done, 1 not there."""
    assert kv("put", "there", "v").exit_code == OK
    assert kv("get", "there").exit_code == OK
    assert kv("delete", "there").output == "deleted\n"
    absent = kv("get", "there")
    assert (absent.exit_code, absent.stdout, absent.stderr) == (NO, "", "key 'there': it is absent\n")
    gone = kv("delete", "there")
    assert (gone.exit_code, gone.output) == (NO, "it was absent\n")


def test_another_revision_is_exit_code_1_and_changes_nothing(kv: Kv) -> None:
    """It says what stands."""
    revision = json.loads(kv("put", "cas", "1", "--if-revision", "0", "--json").stdout)["revision"]
    for command in (("put", "cas", "2"), ("delete", "cas")):
        refused = kv(*command, "--if-revision", "0", "--json")
        assert (refused.exit_code, refused.stdout) == (NO, "")
        assert f"key 'cas': revision {revision} stands" in refused.stderr
    changed = json.loads(kv("put", "cas", "2", "--if-revision", str(revision), "--json").stdout)["revision"]
    assert json.loads(kv("get", "cas", "--json").stdout) == {"key": "cas", "revision": changed, "value": "2"}
    assert json.loads(kv("delete", "cas", "--if-revision", str(changed), "--json").stdout) == {"deleted": True}


def test_bytes_go_in_from_standard_input_and_come_out_as_they_are(kv: Kv) -> None:
    """In JSON by base64 when they are no text."""
    value = bytes(range(256))
    assert kv("put", "bytes", "-", stdin=value).exit_code == OK
    assert kv("get", "bytes", "--value-only").stdout_bytes == value
    found = json.loads(kv("get", "bytes", "--json").stdout)
    assert found.keys() == {"key", "revision", "value_base64"}
    assert kv("get", "bytes").exit_code == OK
    with pytest.raises(InvalidInputError, match="name one of them"):
        kv("get", "bytes", "--value-only", "--json")


def test_a_list_shows_the_keys_below_a_prefix_of_one_cluster(kv: Kv) -> None:
    """In key order; all pages."""
    large = "v" * 2**20
    for key, value in [("p/b", large), ("p/a", large), ("p/c", "v"), ("q", "v")]:
        kv("put", key, "-", "--cluster", "listed", stdin=value.encode())
    rows = json.loads(kv("list", "p/", "--cluster", "listed", "--json").stdout)
    assert [(row["key"], len(row["value"])) for row in rows] == [("p/a", 2**20), ("p/b", 2**20), ("p/c", 1)]
    lines = kv("list", "p/", "--cluster", "listed", "--output", "csv").stdout.splitlines()
    assert (lines[0], lines[-1].endswith(",v,")) == ("key,revision,value,value_base64", True)
    assert kv("get", "p/c", "--cluster", "listed", "--output", "csv").stdout.splitlines() == [lines[0], lines[-1]]
    shown = kv("list", "--cluster", "listed").output
    assert [key in shown for key in ("p/a", "p/b", "p/c", "q", "1,048,576", "4 keys")] == [True] * 6
    assert kv("list", "--cluster", "nobody").output == "key\trevision\tbytes\tvalue\n0 keys\n"


def test_what_goes_wrong_is_one_line(kv: Kv) -> None:
    """Exit code 2 by `main`: a bad key by its field, and a service that is not there."""
    with pytest.raises(CallError, match=r"INVALID_ARGUMENT: key is empty$"):
        kv("put", "", "v")
    with pytest.raises(CallError, match=r"UNAVAILABLE: .*; is a Meta Service that serves metadata there"):
        Kv(f"127.0.0.1:{free_port()}")("get", "k")
    assert kv("put", "k", "v", "--if-revision", "-1").exit_code == ERROR
