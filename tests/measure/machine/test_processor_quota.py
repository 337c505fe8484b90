"""Quotas of control groups, and how long they wait, from files that the test writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.measure.machine.processor_quota import quota_processors, waited_seconds


def group(cgroups: Path, path: str, file: str, text: str) -> None:
    (cgroups / path).mkdir(parents=True, exist_ok=True)
    (cgroups / path / file).write_text(text)


@pytest.fixture
def own(tmp_path: Path) -> Path:
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
    tmp_path: Path, own: Path, pod: str, container: str, processors: float | None
) -> None:
    cgroups = tmp_path / "cgroup"
    group(cgroups, "pod", "cpu.max", f"{pod}\n")
    group(cgroups, "pod/container", "cpu.max", f"{container}\n")
    group(cgroups, "other", "cpu.max", "1000 100000\n")
    assert quota_processors(cgroups, own) == processors


def test_how_long_its_own_group_has_waited(tmp_path: Path, own: Path) -> None:
    cgroups = tmp_path / "cgroup"
    group(cgroups, "pod", "cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=9000000\n")
    group(
        cgroups,
        "pod/container",
        "cpu.pressure",
        "some avg10=1.53 avg60=0.30 avg300=0.00 total=1250000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
    )
    assert waited_seconds(cgroups, own) == 1.25


@pytest.mark.parametrize("text", [None, "", "full avg10=0.00 total=7\n", "some avg10=0.00\n", "some total=x\n", "\n"])
def test_a_system_that_does_not_tell(tmp_path: Path, own: Path, text: str | None) -> None:
    if text is not None:
        group(tmp_path / "cgroup", "pod/container", "cpu.pressure", text)
    assert waited_seconds(tmp_path / "cgroup", own) is None
    assert waited_seconds(tmp_path / "cgroup", tmp_path / "nowhere") is None
    assert quota_processors(tmp_path / "cgroup", tmp_path / "nowhere") is None
