import os
from pathlib import Path

import pytest

from frx_graph.support.cache_directory import get_cache_directory, write_cache_entry


def test_the_environment_variable_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FRX_CACHE_DIR", os.fspath(tmp_path))
    assert get_cache_directory() == tmp_path
    monkeypatch.setenv("FRX_CACHE_DIR", "")
    assert get_cache_directory().name == "frx-graph"


def test_an_entry_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "entry.json"
    assert write_cache_entry(path, "first")
    assert path.read_text() == "first"


def test_a_place_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert not write_cache_entry(tmp_path / "file" / "entry", "text")
    (tmp_path / "directory" / "inside").mkdir(parents=True)
    assert not write_cache_entry(tmp_path / "directory", "text")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["directory", "file"]
