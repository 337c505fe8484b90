"""What holds processors back, from files that the test writes; and that what a system does not tell is unknown."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from frx_graph.measure.machine.processor_state import (
    CpuThrottling,
    add_siblings,
    describe_throttling_between,
    read_cpu_throttling,
    read_processor_state,
)

NOTHING = CpuThrottling(None, None, None)
ALLOWED = sorted(os.sched_getaffinity(0))


def thermal(cpus: Path, cpu: int, core: str, package: str) -> None:
    folder = cpus / f"cpu{cpu}" / "thermal_throttle"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "core_throttle_count").write_text(core)
    (folder / "package_throttle_count").write_text(package)


def group(cgroups: Path, path: str, text: str) -> None:
    (cgroups / path).mkdir(parents=True, exist_ok=True)
    (cgroups / path / "cpu.stat").write_text(text)


def test_heat(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    thermal(tmp_path, ALLOWED[0], "3\n", "10\n")
    thermal(tmp_path, max(ALLOWED) + 1, "100\n", "100\n")  # this process does not run there
    begin = read_cpu_throttling(tmp_path, nowhere, nowhere)
    assert begin == CpuThrottling(13, None, None)
    assert describe_throttling_between(begin, read_cpu_throttling(tmp_path, nowhere, nowhere)) is None
    thermal(tmp_path, ALLOWED[0], "4\n", "10\n")
    assert (
        describe_throttling_between(begin, read_cpu_throttling(tmp_path, nowhere, nowhere)) == "a processor got too hot"
    )


@pytest.mark.parametrize("folder", ["", "user.slice", "user.slice/job"])
def test_quota_of_the_own_or_a_parent_group_is_reported(tmp_path: Path, folder: str) -> None:
    own = tmp_path / "own"
    own.write_text("1:cpu:/old\n0::/user.slice/job\n")
    cgroups = tmp_path / "cgroup"
    group(cgroups, "", "usage_usec 7\n")  # as the root of a machine
    group(cgroups, "other.slice", "nr_throttled 1000\nthrottled_usec 9000000\n")
    group(cgroups, folder, "usage_usec 7\nnr_periods 9\nnr_throttled 5\nthrottled_usec 250000\n")
    begin = read_cpu_throttling(tmp_path, cgroups, own)
    assert begin == CpuThrottling(None, 5, 0.25)
    group(cgroups, folder, "usage_usec 9\nnr_periods 12\nnr_throttled 7\nthrottled_usec 312000\n")
    said = describe_throttling_between(begin, read_cpu_throttling(tmp_path, cgroups, own))
    assert said == "the control group's processor time was used up 2 times, for 0.062 s"
    # More periods, none of them throttled.
    begin = read_cpu_throttling(tmp_path, cgroups, own)
    group(cgroups, folder, "usage_usec 99\nnr_periods 99\nnr_throttled 7\nthrottled_usec 312000\n")
    assert describe_throttling_between(begin, read_cpu_throttling(tmp_path, cgroups, own)) is None


@pytest.mark.parametrize("own", [None, "", "1:cpu:/old\n", "0::/\n", "0::/../outside\n", "nonsense"])
def test_throttling_is_unknown_if_the_system_does_not_report_it(tmp_path: Path, own: str | None) -> None:
    file = tmp_path / "own"
    if own is not None:
        file.write_text(own)
    thermal(tmp_path, ALLOWED[0], "?\n", "\n")
    group(tmp_path / "cgroup", "", "usage_usec 7\nnr_throttled\n")
    assert read_cpu_throttling(tmp_path, tmp_path / "cgroup", file) == NOTHING
    assert describe_throttling_between(NOTHING, CpuThrottling(4, 4, 4.0)) is None
    assert describe_throttling_between(CpuThrottling(4, 4, 4.0), NOTHING) is None


def test_restarted_counters_are_not_throttling() -> None:
    assert describe_throttling_between(CpuThrottling(4, 4, 4.0), CpuThrottling(0, 0, 0.0)) is None


def test_zero_of_a_library_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_freq", lambda: SimpleNamespace(current=2600.0, min=0.0, max=0.0))
    state = read_processor_state()
    assert (state.frequency_mhz, state.frequency_limit_mhz) == (2600.0, None)


def test_a_machine_of_which_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(psutil, "cpu_freq", lambda: None)
    monkeypatch.setattr(os, "getloadavg", refuse)
    monkeypatch.setattr("frx_graph.measure.machine.processor_state.get_available_memory", lambda: None)
    state = dataclasses.asdict(read_processor_state())
    del state["throttling"]
    assert set(state.values()) == {None}


def test_this_machine() -> None:
    state = read_processor_state()
    assert state.available_bytes is not None
    assert state.available_bytes > 2**20
    assert state.load_average is not None
    assert state.load_average >= 0


def test_siblings_are_found_and_others_not(tmp_path: Path) -> None:
    for number, text in enumerate(("0,4", "1,5", "2-3", "2-3", "0,4", "nonsense", "")):
        (tmp_path / f"cpu{number}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}" / "topology" / "thread_siblings_list").write_text(f"{text}\n")
    assert add_siblings(frozenset({0}), tmp_path) == {0, 4}
    assert add_siblings(frozenset({0, 2}), tmp_path) == {0, 2, 3, 4}
    assert add_siblings(frozenset({5}), tmp_path) == {5}
    assert add_siblings(frozenset({6}), tmp_path) == {6}
    assert add_siblings(frozenset({9}), tmp_path) == {9}


@pytest.mark.parametrize("processors", [frozenset(), frozenset({0})])
def test_on_this_machine(processors: frozenset[int]) -> None:
    assert add_siblings(processors) >= processors
