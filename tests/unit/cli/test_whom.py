"""Whom a command calls, and who gets the token of a context."""

from pathlib import Path

import click
import pytest

from adapter.cli import contexts, whom
from adapter.cli.connection import Target
from adapter.cli.contexts import Context
from adapter.errors import ConfigError, InvalidInputError

FILES: dict[str, Path | None] = dict.fromkeys(("token_file", "tls_ca", "tls_cert", "tls_key"))
TOKEN = "/run/secrets/prod-token"  # noqa: S105 - a path


@pytest.fixture(autouse=True)
def two_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is in use, and has a token."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in (contexts.VARIABLE, whom.ADAPTER_VARIABLE, whom.META_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    with contexts.changing() as found:
        found.by_name["prod"] = Context(address="10.0.0.5:9520", meta="10.0.0.9:9530", token_file=TOKEN)
        found.by_name["bare"] = Context(meta="10.0.0.8:9530")
        found.current = "prod"


def asked(context: str | None = None, address: str | None = None, *, of_meta: bool = False, mine: str = "") -> Target:
    """The target of a command with these options."""
    files = {**FILES, "token_file": Path(mine)} if mine else FILES
    command = click.Context(click.Command("get"))
    return whom.target_of(command, context, address, files, typed=address is not None, of_meta=of_meta)


def test_a_token_goes_to_its_own_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that was typed, or stands in the environment, may be anybody's; unless the context is typed beside it."""
    assert asked() == Target("10.0.0.5:9520", Path(TOKEN), None, "context prod", "the context's token_file")
    assert asked(address="10.6.6.6:9520") == Target("10.6.6.6:9520")
    assert asked("prod", "10.6.6.6:9520").token_file == Path(TOKEN)
    assert asked(mine="/mine") == Target("10.0.0.5:9520", Path("/mine"), None, "context prod")
    monkeypatch.setenv(whom.ADAPTER_VARIABLE, "10.6.6.6:9520")
    assert asked() == Target("10.6.6.6:9520", how="by OFFSET_ADAPTER_ADDRESS")
    assert (asked("prod").address, asked("").address) == ("10.0.0.5:9520", "10.6.6.6:9520")


def test_option_then_environment_then_context_then_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """For adapters and Meta Services alike; a context without the address is no reason to ask somebody else."""
    assert (asked(of_meta=True).address, asked("bare", of_meta=True).address) == ("10.0.0.9:9530", "10.0.0.8:9530")
    with pytest.raises(ConfigError, match="context bare: has no address: offset-adapter context set bare --address"):
        asked("bare")
    assert asked("") == Target("127.0.0.1:9520", how="the default")
    monkeypatch.setenv(contexts.VARIABLE, "")
    assert asked(of_meta=True) == Target("127.0.0.1:9530", how="the default")
    monkeypatch.setenv(contexts.VARIABLE, "gone")
    with pytest.raises(ConfigError, match="OFFSET_ADAPTER_CONTEXT: no context 'gone'"):
        asked()
    assert asked("prod").how == "context prod"
    monkeypatch.setenv(whom.META_VARIABLE, "10.7.7.7:1")
    assert asked(of_meta=True) == Target("10.7.7.7:1", how="by OFFSET_META_ADDRESS")


def test_a_home_that_is_closed_to_this_user_has_no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as another user than its HOME is of; a file that is there and cannot be read is an error."""
    closed = PermissionError(13, "Permission denied")

    def refuse(*_: object, **__: object) -> None:
        raise closed

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match=r"contexts\.toml: cannot be read: Permission denied"):
        contexts.load()
    monkeypatch.setattr(Path, "exists", refuse)
    assert contexts.load() == contexts.Contexts()
    assert asked().how == "the default"


def test_a_name_with_any_printable_letters_comes_back_from_the_file() -> None:
    """TOML's strings are those of JSON for these."""
    names = ['a "b" \\c', "[x.y]", "\N{SNOWMAN} \N{GRINNING FACE}", "#"]
    with contexts.changing() as found:
        for name in names:
            found.by_name[contexts.check_name(name)] = Context(address="h:1")
    assert {*names, "prod", "bare"} == {*contexts.load().by_name}
    for name in ("", " a", "a\n", "a\x1b"):
        with pytest.raises(InvalidInputError, match="NAME"):
            contexts.check_name(name)


def test_a_change_that_is_refused_leaves_the_file_as_it_was() -> None:
    """Nothing is written."""
    place = contexts.path()
    assert place
    before = place.read_bytes()
    with pytest.raises(ConfigError, match="NAME: no context 'gone'"), contexts.changing() as found:
        found.by_name.pop("bare") and found.find("gone", "NAME")
    assert place.read_bytes() == before
    assert [path.name for path in place.parent.iterdir()] == [place.name]
