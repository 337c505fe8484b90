"""How much memory a process can have, in control groups that the test writes."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from frx_graph.measure.machine.available_memory import available_memory

MIB = 2**20
NOWHERE = Path("/nowhere")


def group(folder: Path, limit: str, used: int, inactive: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\nactive_file 5\n")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own"
    file.write_text("0::/slice/job\n")
    return file


def test_the_lowest_of_all_limits_counts(tmp_path: Path, own: Path) -> None:
    groups = tmp_path / "groups"
    group(groups / "slice", str(100 * MIB), 80 * MIB)
    group(groups / "slice" / "job", str(64 * MIB), 24 * MIB)
    group(groups / "other", str(MIB), MIB)
    assert available_memory(groups, own) == 20 * MIB


def test_what_is_kept_of_files_can_be_had(tmp_path: Path, own: Path) -> None:
    group(tmp_path / "slice" / "job", str(64 * MIB), 60 * MIB, inactive=30 * MIB)
    assert available_memory(tmp_path, own) == 34 * MIB


def test_nothing_is_left_of_a_limit_that_was_lowered(tmp_path: Path, own: Path) -> None:
    group(tmp_path / "slice" / "job", str(8 * MIB), 9 * MIB)
    assert available_memory(tmp_path, own) == 0


def test_a_group_without_a_limit_is_the_machine(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 5 * MIB}))
    group(tmp_path / "slice" / "job", "max", MIB)
    assert available_memory(tmp_path, own) == 5 * MIB
    assert available_memory(NOWHERE, NOWHERE) == 5 * MIB


def test_a_machine_that_has_less_than_the_group_may_use(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 5 * MIB}))
    group(tmp_path / "slice" / "job", str(64 * MIB), MIB)
    assert available_memory(tmp_path, own) == 5 * MIB


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError

    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    assert available_memory(NOWHERE, NOWHERE) is None
