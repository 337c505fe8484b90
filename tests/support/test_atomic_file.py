import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frx_graph.support.atomic_file import replace_on_success, write_all_atomically, write_atomically


@pytest.fixture(params=[0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_atomically(path, "first")
    with path.open() as reader:
        write_atomically(path, "second, and longer")
        assert reader.read() == "first"
    assert path.read_text() == "second, and longer"
    assert list(tmp_path.iterdir()) == [path]


def test_the_mode_is_what_the_umask_leaves(tmp_path: Path, umask: int) -> None:
    write_atomically(tmp_path / "report", "text")
    assert stat.S_IMODE((tmp_path / "report").stat().st_mode) == 0o666 & ~umask


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "behind")
    write_atomically(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "behind").read_text() == "text"


def test_non_regular_file_is_written_directly(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(tmp_path / "pipe", "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("name", ["missing/file", "folder"])
def test_failed_write_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    with pytest.raises(OSError):
        write_atomically(tmp_path / name, "text")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_externally_written_file_replaces_the_target_on_success(tmp_path: Path) -> None:
    path = tmp_path / "save.csv"
    path.write_text("old")
    with replace_on_success(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    with pytest.raises(KeyboardInterrupt), replace_on_success(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_several_files_are_replaced_together(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    write_all_atomically({tmp_path / "a": "1", tmp_path / "b": "2"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "1", "b": "2"}


@pytest.mark.parametrize("failing", ["replace", "open"])
def test_several_files_are_written_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    (tmp_path / "a").write_text("old a")
    (tmp_path / "c").write_text("old c")
    calls = iter(range(10))
    done = getattr(Path, failing)

    def fails_the_third_time(path: Path, *arguments: Any, **options: Any) -> Any:
        if next(calls) == 2:
            raise OSError(28, "No space left on device")
        return done(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, failing, fails_the_third_time)
        with pytest.raises(OSError, match="No space left"):
            write_all_atomically({tmp_path / name: "new" for name in "abc"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old a", "c": "old c"}
