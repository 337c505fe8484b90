"""The distance between a virtual machine's processors, and the least one that is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from frx_graph.measure.machine import processor_distance
from frx_graph.measure.machine.processor_distance import (
    MOST_THREADS,
    keep_least_distance,
    measure_distance,
    read_least_distance,
)
from frx_graph.support.cache_directory import CACHE_VARIABLE

VIRTUAL = "processor\t: 0\nflags\t\t: fpu vme hypervisor avx2\n"
BARE = "processor\t: 0\nmodel name\t: hypervisor flags\nflags\t\t: fpu vme avx2\n"


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("text", "virtual"), [(VIRTUAL, True), (BARE, False), ("", False)])
def test_a_virtual_machine_says_so(text: str, virtual: bool, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(text)
    assert processor_distance._is_virtual_machine(info) is virtual
    assert not processor_distance._is_virtual_machine(tmp_path / "none")


@pytest.mark.usefixtures("threads")
def test_only_few_threads_of_a_virtual_machine_have_a_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_distance, "_is_virtual_machine", lambda: True)
    torch.set_num_threads(2)
    measured = measure_distance()
    assert measured is not None
    # Both threads' shares at once take about as long as one, or longer; one thread alone would take twice as long.
    assert measured > 0.5
    for count in (1, MOST_THREADS + 1):
        torch.set_num_threads(count)
        assert measure_distance() is None
    torch.set_num_threads(2)
    monkeypatch.setattr(processor_distance, "_is_virtual_machine", lambda: False)
    assert measure_distance() is None


def test_a_long_loop_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter((2.0, 1.2, 5.0))
    monkeypatch.setattr(processor_distance, "_is_virtual_machine", lambda: True)
    monkeypatch.setattr(processor_distance, "_compare_loops", lambda whole: next(found))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert measure_distance() == 1.2


def test_it_is_measured_in_inference_mode_and_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_distance, "_is_virtual_machine", lambda: True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    with torch.inference_mode():
        assert measure_distance() is not None
    assert measure_distance() is not None


def test_the_least_distance_is_kept_for_a_day(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert read_least_distance("a host", "AMD EPYC 9/2 @ 3 GHz", 2) is None
    keep_least_distance(1.25, "a host", "AMD EPYC 9/2 @ 3 GHz", 2)
    assert read_least_distance("a host", "AMD EPYC 9/2 @ 3 GHz", 2) == 1.25
    assert read_least_distance("a host", "AMD EPYC 9/2 @ 3 GHz", 4) is None
    (entry,) = tmp_path.iterdir()
    seen = json.loads(entry.read_text())["seen"]
    assert read_least_distance("a host", "AMD EPYC 9/2 @ 3 GHz", 2, now=seen + 86_000) == 1.25
    assert read_least_distance("a host", "AMD EPYC 9/2 @ 3 GHz", 2, now=seen + 87_000) is None
    assert read_least_distance("a host", "AMD EPYC 9/2 @ 3 GHz", 2, now=seen - 10) is None
    assert read_least_distance("another", "AMD EPYC 9/2 @ 3 GHz", 2) is None
    entry.write_text(entry.read_text().replace("1.25", "-1"))
    assert read_least_distance("a host", "AMD EPYC 9/2 @ 3 GHz", 2) is None
