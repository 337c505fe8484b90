"""Memory and processor time that control groups leave, from files that the test writes."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from frx_graph.measure.machine.control_groups import get_available_memory, read_quota_processors, read_waited_seconds

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
    assert get_available_memory(groups, own) == 20 * MIB


def test_what_is_kept_of_files_can_be_had(tmp_path: Path, own: Path) -> None:
    group(tmp_path / "slice" / "job", str(64 * MIB), 60 * MIB, inactive=30 * MIB)
    assert get_available_memory(tmp_path, own) == 34 * MIB


def test_nothing_is_left_of_a_limit_that_was_lowered(tmp_path: Path, own: Path) -> None:
    group(tmp_path / "slice" / "job", str(8 * MIB), 9 * MIB)
    assert get_available_memory(tmp_path, own) == 0


def test_a_group_without_a_limit_is_the_machine(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 5 * MIB}))
    group(tmp_path / "slice" / "job", "max", MIB)
    assert get_available_memory(tmp_path, own) == 5 * MIB
    assert get_available_memory(NOWHERE, NOWHERE) == 5 * MIB


def test_a_machine_that_has_less_than_the_group_may_use(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 5 * MIB}))
    group(tmp_path / "slice" / "job", str(64 * MIB), MIB)
    assert get_available_memory(tmp_path, own) == 5 * MIB


def test_available_memory_is_none_if_the_system_does_not_report_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError

    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    assert get_available_memory(NOWHERE, NOWHERE) is None


def quota_group(cgroups: Path, path: str, file: str, text: str) -> None:
    (cgroups / path).mkdir(parents=True, exist_ok=True)
    (cgroups / path / file).write_text(text)


@pytest.fixture
def own_pod(tmp_path: Path) -> Path:
    file = tmp_path / "own"
    file.write_text("1:cpu:/old\n0::/pod/container\n")
    return file


@pytest.mark.parametrize(
    ("pod", "container", "processors"),
    [
        ("max 100000", "max 100000", None),
        ("max 100000", "150000 100000", 1.5),
        ("50000 100000", "150000 100000", 0.5),
        ("400000 100000", "max 100000", 4.0),
        ("nonsense", "1 0", None),
        ("", "100000", None),
    ],
)
def test_the_least_that_a_group_or_one_above_it_leaves(
    tmp_path: Path, own_pod: Path, pod: str, container: str, processors: float | None
) -> None:
    cgroups = tmp_path / "cgroup"
    quota_group(cgroups, "pod", "cpu.max", f"{pod}\n")
    quota_group(cgroups, "pod/container", "cpu.max", f"{container}\n")
    quota_group(cgroups, "other", "cpu.max", "1000 100000\n")
    assert read_quota_processors(cgroups, own_pod) == processors


def test_how_long_its_own_group_has_waited(tmp_path: Path, own_pod: Path) -> None:
    cgroups = tmp_path / "cgroup"
    quota_group(cgroups, "pod", "cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=9000000\n")
    quota_group(
        cgroups,
        "pod/container",
        "cpu.pressure",
        "some avg10=1.53 avg60=0.30 avg300=0.00 total=1250000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
    )
    assert read_waited_seconds(cgroups, own_pod) == 1.25


@pytest.mark.parametrize("text", [None, "", "full avg10=0.00 total=7\n", "some avg10=0.00\n", "some total=x\n", "\n"])
def test_quotas_are_none_if_the_system_does_not_report_them(tmp_path: Path, own_pod: Path, text: str | None) -> None:
    if text is not None:
        quota_group(tmp_path / "cgroup", "pod/container", "cpu.pressure", text)
    assert read_waited_seconds(tmp_path / "cgroup", own_pod) is None
    assert read_waited_seconds(tmp_path / "cgroup", tmp_path / "nowhere") is None
    assert read_quota_processors(tmp_path / "cgroup", tmp_path / "nowhere") is None
