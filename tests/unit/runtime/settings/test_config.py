"""Settings: the files in config/ are their documentation, and the error for a bad value names the setting."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from annotated_types import Ge, Le

from adapter.console.config import ConsoleConfig
from adapter.errors import ConfigError
from adapter.metaservice.config import MetaConfig
from adapter.runtime.settings.addresses import is_loopback, split_address
from adapter.runtime.settings.config import Section, load, parse
from adapter.sidecar.config import AdapterConfig
from tests.unit.config_files import FILES, comment_above, names_in, settings, with_examples

KINDS: dict[str, type[Section]] = {"adapter.toml": AdapterConfig, "meta.toml": MetaConfig, "console.toml": ConsoleConfig}
BOTH = pytest.mark.parametrize("name", KINDS)


def adapter(text: str) -> AdapterConfig:
    """The settings in this text."""
    return parse(tomllib.loads(text), AdapterConfig, source="file.toml")


@BOTH
def test_the_file_in_config_equals_the_defaults(name: str) -> None:
    """Running with the file is the same as running without it."""
    assert load(FILES / name, KINDS[name]) == KINDS[name]()


@BOTH
def test_the_file_in_config_mentions_every_setting_and_nothing_else(name: str) -> None:
    """Optional settings are examples in comments, and these are valid too."""
    values = tomllib.loads(with_examples(name))
    assert set(names_in(values)) == {found for found, _ in settings(KINDS[name])}
    parse(values, KINDS[name], source=name)


@BOTH
def test_the_file_in_config_gives_each_number_its_bounds(name: str) -> None:
    """The comment above a setting has the bounds that are enforced."""
    text = (FILES / name).read_text()
    for setting, field in settings(KINDS[name]):
        lowest = next((found.ge for found in field.metadata if isinstance(found, Ge)), None)
        highest = next((found.le for found in field.metadata if isinstance(found, Le)), None)
        if lowest is not None:
            assert f"{lowest:,} to {highest:,}." in comment_above(text, setting), setting


@BOTH
def test_an_empty_file_is_a_configuration(tmp_path: Path, name: str) -> None:
    """Every setting has a default."""
    (tmp_path / name).write_text("")
    assert load(tmp_path / name, KINDS[name]) == KINDS[name]()


def test_settings_are_frozen() -> None:
    """They cannot be changed at run time."""
    with pytest.raises(ValueError, match="frozen"):
        AdapterConfig().flush.interval_ms = 5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("modes = 'write_back'", "file.toml: modes: is not a setting; see the commented file in config/"),
        ("[flush]\ninterval = 5", "file.toml: flush.interval: is not a setting; see the commented file in config/"),
        ("[server.tls]\ncert = 'c'\nkey = 'k'\nca = 'x'", "file.toml: server.tls.ca: is not a setting"),
        ("[flush]\ninterval_ms = '100'", "file.toml: flush.interval_ms: Input should be a valid integer (got '100')"),
        ("[flush]\ninterval_ms = 100.0", "file.toml: flush.interval_ms: Input should be a valid integer (got 100.0)"),
        ("[flush]\ninterval_ms = true", "file.toml: flush.interval_ms: Input should be a valid integer (got True)"),
        ("[flush]\ninterval_ms = 0", "file.toml: flush.interval_ms: Input should be greater than or equal to 1 (got 0)"),
        ("[flush]\nmax_batch_bytes = 16383", "flush.max_batch_bytes: Input should be greater than or equal to 16384"),
        ("[recovery]\nbatch_keys = 20001", "recovery.batch_keys: Input should be less than or equal to 20000"),
        ("[store]\npath = 5", "file.toml: store.path: "),
        ('[admin]\ntoken_file = "a\\u0000"', "file.toml: admin.token_file: has a zero byte, which no path can have"),
        ("[store]\nwal_sync = 'sometimes'", "file.toml: store.wal_sync: Input should be 'always', 'interval' or 'never'"),
        ("mode = 'Cached'", "file.toml: mode: Input should be 'write_back' or 'write_through' (got 'Cached')"),
        ("flush = 5", "file.toml: flush: "),
        ("[server]\nallow_plaintext_beyond_loopback = 1", "server.allow_plaintext_beyond_loopback: Input should be a valid bool"),
        ("[meta]\nendpoints = []", "file.toml: meta.endpoints: "),
        ("[meta]\nendpoints = ['127.0.0.1:1', 'nowhere']", "file.toml: meta.endpoints.1: 'nowhere' is not host:port"),
        ("[meta]\nendpoints = '127.0.0.1:9530'", "file.toml: meta.endpoints: "),
        ("[meta]\ncluster = ''", "file.toml: meta.cluster: the name is empty"),
        ('[meta]\ncluster = "a\\tb"', "meta.cluster: the name has the control character U+0009 at position 1"),
        ("[log]\nlevel = 'trace'", "file.toml: log.level: "),
        ("[[policy]]\nmode = 'write_back'", "file.toml: policy.0.groups: Field required"),
        ("[[policy]]\ngroups = ''\nmode = 'write_back'", "file.toml: policy.0.groups: "),
        ("[[policy]]\ngroups = 'a'\nmode = 'through'", "file.toml: policy.0.mode: "),
        ("[server.tls]\ncert = 'c.crt'", "file.toml: server.tls.key: Field required"),
        ("[meta.tls]\nca = 'ca'\ncert = 'c.crt'", "file.toml: meta.tls: cert and key belong together: give both or none"),
        ("[meta.tls]\nca = 'ca'\nkey = 'c.key'", "file.toml: meta.tls: cert and key belong together: give both or none"),
        ("[meta.tls]\ncert = 'c'\nkey = 'k'", "file.toml: meta.tls.ca: Field required"),
    ],
)
def test_a_bad_setting_is_refused_by_its_name(text: str, problem: str) -> None:
    """The error has file, section, key, problem and value; nothing is corrected silently (10)."""
    with pytest.raises(ConfigError) as caught:
        adapter(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize("text", ["mode = 's3://KEY:SECRET@b'", "meta.endpoints = [['s3://KEY:SECRET@b']]"])
def test_an_error_does_not_show_a_url(text: str) -> None:
    """It may hold credentials."""
    with pytest.raises(ConfigError, match=r"file\.toml: m") as caught:
        adapter(text)
    assert "SECRET" not in str(caught.value)


def test_every_bad_setting_is_told_at_once() -> None:
    """The error has one line for each."""
    with pytest.raises(ConfigError) as caught:
        adapter("mode = 'x'\nnew = 1\n[flush]\ninterval_ms = -1")
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    "address", ["", "9520", ":9520", "127.0.0.1", "127.0.0.1:", "h:65536", "h:-1", "h:1.5", "h:\u00b2", "h:a"]
)
def test_a_bad_address_is_refused(address: str) -> None:
    """The error contains the address."""
    with pytest.raises(ConfigError, match=r"^file.toml: server.listen: .* is not host:port with a port from 0 to 65535"):
        adapter(f"[server]\nlisten = '{address}'")


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:65535", "::1", 65535), ("localhost:9520", "localhost", 9520)],
)
def test_an_address_is_split_into_host_and_port(address: str, host: str, port: int) -> None:
    """IPv6 addresses are in brackets."""
    assert split_address(address) == (host, port)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example.com:1", False),
        ("broker-1:1", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(address: str, loopback: bool) -> None:
    """A host name other than localhost may resolve to anything."""
    assert is_loopback(address) is loopback


@BOTH
def test_plaintext_beyond_loopback_is_refused_until_the_file_says_so_in_plain_words(name: str) -> None:
    """The error names both ways out: TLS, or the switch."""
    server: dict[str, Any] = {"listen": "0.0.0.0:9520"}
    with pytest.raises(
        ConfigError, match=r"server: listen = '0.0.0.0:9520' is reachable from other machines, without TLS"
    ) as caught:
        parse({"server": server}, KINDS[name], source="f")
    assert "allow_plaintext_beyond_loopback = true" in str(caught.value)
    access = {"access": {"view_token_file": "token"}} if name == "console.toml" else {}  # else everybody could look
    parse({"server": {**server, "allow_plaintext_beyond_loopback": True}, **access}, KINDS[name], source="f")
    parse({"server": {**server, "tls": {"cert": "c", "key": "k"}}, **access}, KINDS[name], source="f")


@BOTH
def test_metrics_beyond_loopback_need_a_switch_of_their_own(name: str) -> None:
    """Metrics show the names of topics and groups to anybody who can connect."""
    with pytest.raises(ConfigError, match=r"metrics: listen = '\[::\]:9521' is reachable from other machines"):
        parse({"metrics": {"listen": "[::]:9521"}}, KINDS[name], source="f")
    parse({"metrics": {"listen": "[::]:9521", "allow_beyond_loopback": True}}, KINDS[name], source="f")
    parse({"metrics": {"listen": ""}}, KINDS[name], source="f")


def test_the_first_matching_policy_decides() -> None:
    """Patterns are case-sensitive shell patterns over group and namespace; without a match the default mode applies."""
    config = adapter("""
        [[policy]]
        groups = "payments-test"
        mode = "write_back"
        [[policy]]
        groups = "payments-*"
        mode = "write_through"
        [[policy]]
        groups = "*"
        namespaces = "bank[12]"
        mode = "write_through"
    """)
    assert config.mode_of("default", "payments-test") == "write_back"
    assert config.mode_of("default", "payments-1") == "write_through"
    assert config.mode_of("default", "payments") == "write_back"
    assert config.mode_of("default", "Payments-1") == "write_back"
    assert config.mode_of("bank1", "any") == "write_through"
    assert config.mode_of("bank1", "payments-test") == "write_back"
    assert config.mode_of("bank3", "any") == "write_back"


def test_a_policy_may_take_groups_out_of_write_through() -> None:
    """The default mode may be either of the two."""
    config = adapter("mode = 'write_through'\n[[policy]]\ngroups = 'logs-?'\nmode = 'write_back'")
    assert config.mode_of("default", "logs-1") == "write_back"
    assert config.mode_of("default", "logs-12") == "write_through"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"mode = ", "is not valid TOML"),
        (b"mode = 'write_back'\nmode = 'write_back'", "is not valid TOML"),
        (b"\xff\xfe", "is not valid TOML"),
        (b"[flush]\ninterval_ms = " + b"9" * 5_000, "is not valid TOML"),
        (b"broker = " + b"[" * 5_000, "is not valid TOML"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None, problem: str) -> None:
    """The error also says what is wrong with the file."""
    path = tmp_path / "a.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(f"{path}: {problem}")):
        load(path, AdapterConfig)
