"""The size of the last cache, as Linux tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.measure.machine.cache_size import read_last_cache_bytes


def write_cache(folder: Path, index: int, level: str, size: str) -> None:
    place = folder / f"index{index}"
    place.mkdir()
    (place / "level").write_text(level)
    (place / "size").write_text(size)


@pytest.mark.parametrize(("size", "read"), [("512K\n", 512 << 10), ("32M\n", 32 << 20)])
def test_the_highest_level_counts(tmp_path: Path, size: str, read: int) -> None:
    write_cache(tmp_path, 0, "1\n", "32K\n")
    write_cache(tmp_path, 1, "3\n", size)
    write_cache(tmp_path, 2, "2\n", "1024K\n")
    assert read_last_cache_bytes(tmp_path) == read


def test_unreadable_levels_are_passed_over(tmp_path: Path) -> None:
    assert read_last_cache_bytes(tmp_path) is None
    write_cache(tmp_path, 0, "one", "32K")
    write_cache(tmp_path, 1, "2", "many")
    assert read_last_cache_bytes(tmp_path) is None
