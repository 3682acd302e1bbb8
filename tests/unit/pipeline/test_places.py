"""Places: paths and URLs of the jobs, and what is shown of a URL."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow import fs

from adapter.errors import ConfigError
from adapter.pipeline.places import Place, data_files, listed, redacted
from tests.pipeline.object_store import s3_bucket

SECRET = "AKIA:s3cr3t"  # noqa: S105 - an example


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/data/a@b:c", "/data/a@b:c"),
        ("s3://bucket/a", "s3://bucket/a"),
        (f"s3://{SECRET}@bucket/a@b", "s3://bucket/a@b"),
        ("s3a://AKIA:s3cr3t/x@bucket/a", "s3a://bucket/a"),  # a slash that is not quoted
        (
            "s3://bucket/a?region=x&endpoint_override=h:1&access_key=s3cr3t",
            "s3://bucket/a?region=x&endpoint_override=h:1&access_key=***",
        ),
        ("s3://AKIA:s3cr3t", "s3://***"),
        ("hdfs://user@host:8020/a", "hdfs://host:8020/a"),
        ("abfs://container@account.dfs/a", "abfs://container@account.dfs/a"),
        ("abfs://container:s3cr3t@account.dfs/a", "abfs://account.dfs/a"),
    ],
)
def test_credentials_of_a_url_are_not_shown(url: str, shown: str) -> None:
    """Neither by str nor by repr; paths are shown as they are."""
    assert redacted(url) == shown
    assert str(Place(url)) == shown
    assert "s3cr3t" not in repr(Place(url))


@pytest.mark.parametrize("url", ["s3://AKIA:s3cr3t/x@bucket/a", f"s3a://{SECRET}@bucket?bogus=s3cr3t", f"ftp://{SECRET}@host/a"])
def test_a_url_that_cannot_be_opened_is_an_error_without_credentials(url: str) -> None:
    """The libraries' own messages have the whole URL."""
    with pytest.raises(ConfigError, match="cannot be opened: ") as raised:
        Place(url).opened()
    assert "s3cr3t" not in str(raised.value)


def test_a_url_of_hdfs_needs_its_client_and_names_no_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error says what to do."""
    with pytest.raises(ConfigError, match=r"hdfs://host/a: cannot be opened: .*; HADOOP_USER_NAME names the user"):
        Place("hdfs://user@host/a").opened()
    monkeypatch.setitem(sys.modules, "hdfs_native.fsspec", None)
    with pytest.raises(ConfigError, match=r"hdfs-native is not installed: pip install 'hdfs-native<0.15,>=0.14'"):
        Place("hdfs://absent:1/a").opened()


def test_a_path_is_absolute_and_a_url_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The workers have another working directory."""
    monkeypatch.chdir(tmp_path)
    assert Place.of("a/b").path == tmp_path / "a" / "b"
    assert Place.of("file:///a/b/") == Place("/a/b")
    assert Place.of("s3://b/a/") / "c=%2F/d e" == Place("s3://b/a/c=%252F/d%20e")
    assert (Place.of("s3://b/a?region=x") / "d e").name == "d e"
    with pytest.raises(ConfigError, match="s3://b: is a URL, and this has to be a path"):
        _ = Place.of("s3://b").path


def test_files_are_written_listed_and_deleted(tmp_path: Path) -> None:
    """Absent files and directories are no error."""
    place = Place.of(tmp_path / "new")
    assert place.entries() == []
    assert not place.is_directory()
    (place / "d/b.parquet").write(b"12")
    (place / "d/a.txt").write_unsynced(b"1")
    assert place.entries(recursive=True) == [("d", 0, True), ("d/a.txt", 1, False), ("d/b.parquet", 2, False)]
    assert [file.read() for file in data_files(place / "d")] == [b"12"]
    assert (place / "d/a.txt").is_file()
    for _ in range(2):
        (place / "d/a.txt").delete()
        (place / "d").delete_tree()
    assert place.entries() == []


def test_an_object_store_is_read_and_written_as_a_directory_is() -> None:
    """Names with characters that a URL quotes are kept; directories exist while something is in them."""
    with s3_bucket() as bucket:
        place = bucket / "a=1" / "b c%2F"
        assert not place.is_directory()
        place.make()
        (place / "x.parquet").write(b"12")
        assert bucket.entries() == [("a=1", 0, True)]
        assert bucket.entries(recursive=True)[1:] == [("a=1/b c%2F", 0, True), ("a=1/b c%2F/x.parquet", 2, False)]
        assert [(file.name, file.read()) for file in data_files(place)] == [("x.parquet", b"12")]
        assert (place.is_directory(), (place / "x.parquet").is_file()) == (True, True)
        for _ in range(2):
            (place / "x.parquet").delete()
            place.delete_tree()
        assert place.entries() == []
        with pytest.raises(FileNotFoundError) as raised:
            (place / "x.parquet").read()
    assert "s3cr3t" not in str(raised.value)


def test_google_storage_is_listed_with_the_directories_that_pyarrow_leaves_out() -> None:
    """As its file system answers: files alone, or with them the empty objects that somebody else made for directories."""
    file = fs.FileType.File
    paths = ("b/j/date=1/x", "b/j/date=1/broker=2/y", "b/j/date=3/z", "b/j/top")
    infos = [*(fs.FileInfo(path, file, size=7) for path in paths), fs.FileInfo("b/j/date=3/", fs.FileType.Directory)]

    def get_file_info(selector: fs.FileSelector) -> list[fs.FileInfo]:
        assert (selector.base_dir, selector.recursive) == ("b/j", True)
        return infos

    system = SimpleNamespace(type_name="gcs", get_file_info=get_file_info)
    found = [(info.path, info.type, info.size) for info in listed(system, "b/j")]
    directory = fs.FileType.Directory
    assert found == [("b/j/date=1", directory, None), ("b/j/date=3", directory, None), ("b/j/top", file, 7)]
    assert listed(system, "b/j", recursive=True) == infos
