"""A profile is written whole, of as many steps as were asked for, and the run says where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import frx_graph
from frx_graph.profiler import profile_kernels

Recorded = Callable[..., list[dict[str, Any]]]


def marks(trace: Path) -> list[str]:
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["name"] for event in events if event.get("cat") in ("user_annotation", "cpu_op")}
    return sorted(name for name in names if name.startswith("ProfilerStep#"))


def operators(trace: Path) -> int:
    events = json.loads(trace.read_text())["traceEvents"]
    return sum(event["name"] == "aten::relu" for event in events)


def test_steps_of_the_run_are_marked_and_the_window_closes_after_them(recorded: Recorded, trace: Path) -> None:
    folder = trace.parent.parent
    with frx_graph.profile_kernels(folder, steps=3) as window:
        for number in range(5):
            with frx_graph.step_context(number):
                torch.relu(torch.zeros(2))
            assert window.trace.exists() == (number >= 2)
    assert marks(window.trace) == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert operators(window.trace) == 3
    (event,) = recorded("profiler_window")
    assert event["payload"] == {"window_state": "exported", "trace": "profiler/profiler_trace.json", "steps": 3}
    assert list(folder.rglob("*profiler_*")) == [folder / "profiler" / "profiler_trace.json"] == [window.trace]


def test_file_of_events_that_is_in_no_bundle_makes_none(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRX_RAW_TRACE_PATH", str(tmp_path / "a" / "b" / "events.jsonl"))
    with profile_kernels(tmp_path / "a") as window:
        torch.relu(torch.zeros(2))
    assert window.trace == tmp_path / "a" / "profiler_trace.json"
    assert operators(window.trace) == 1


def test_block_without_marked_steps_is_the_window(tmp_path: Path, recorded: Recorded) -> None:
    with profile_kernels(output_dir=str(tmp_path / "elsewhere"), steps=4):
        for _ in range(4):
            torch.relu(torch.zeros(2))
    assert operators(tmp_path / "elsewhere" / "profiler_trace.json") == 4
    assert marks(tmp_path / "elsewhere" / "profiler_trace.json") == []
    assert recorded("profiler_window")[0]["payload"] == {"window_state": "exported", "trace": None, "steps": 4}


@pytest.mark.parametrize("variable", [True, False])
def test_place_by_default_where_nothing_is_recorded(
    variable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if variable:
        monkeypatch.setenv("FRX_OUTPUT_DIR", "artifacts")
    with profile_kernels() as window:
        torch.relu(torch.zeros(2))
        window.step()
        torch.relu(torch.zeros(2))
    trace = tmp_path / ("artifacts" if variable else "frx-job-run") / "profiler_trace.json"
    assert operators(trace) == 2
    assert marks(trace) == ["ProfilerStep#1"]


@pytest.mark.parametrize(
    ("rank", "name"), [("0", "profiler_trace.json"), ("3", "profiler_trace.rank3.json"), ("x", "profiler_trace.json")]
)
def test_each_rank_writes_its_own_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, name: str) -> None:
    monkeypatch.setenv("RANK", rank)
    with profile_kernels(tmp_path) as window:
        torch.relu(torch.zeros(2))
    assert window.trace == tmp_path / name
    assert operators(window.trace) > 0


def test_failed_block_is_profiled_and_its_exception_passes(tmp_path: Path) -> None:
    error = ValueError("the program's")
    with pytest.raises(ValueError) as raised, profile_kernels(tmp_path):
        torch.relu(torch.zeros(2))
        raise error
    assert raised.value is error
    assert operators(tmp_path / "profiler_trace.json") == 1


def test_another_profiler_goes_on_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.profiler.profile() as other, profile_kernels(tmp_path):
        torch.relu(torch.zeros(2))
    assert any(event.key == "aten::relu" for event in other.key_averages())
    assert not (tmp_path / "profiler_trace.json").exists()
    assert capsys.readouterr().err.endswith(
        "frx: kernels are not profiled: RuntimeError: another profiler is running\n"
    )


def test_unwritable_path_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with profile_kernels(tmp_path / "file"):
        torch.relu(torch.zeros(2))
    assert "frx: the profile is not written to " in capfd.readouterr().err
    with torch.profiler.profile():
        pass


def test_a_later_window_leaves_the_earlier_ones_alone(recorded: Recorded, trace: Path) -> None:
    folder = trace.parent.parent
    windows = []
    for count in (2, 1, 0):
        with profile_kernels(folder) as window:
            for _ in range(count):
                torch.relu(torch.zeros(2))
        windows.append(window.trace)
    assert [path.name for path in windows] == [
        "profiler_trace.json", "profiler_trace.2.json", "profiler_trace.3.json"
    ]  # fmt: skip
    assert [operators(path) for path in windows] == [2, 1, 0]
    told = [event["payload"]["trace"] for event in recorded("profiler_window")]
    assert told == [path.relative_to(folder).as_posix() for path in windows]


def test_nested_steps_do_not_count_for_the_window(recorded: Recorded, trace: Path) -> None:
    with profile_kernels(trace.parent.parent, steps=2) as window:
        for _ in range(3):
            with frx_graph.step_context(), frx_graph.step_context():
                torch.relu(torch.zeros(2))
    assert marks(window.trace) == ["ProfilerStep#0", "ProfilerStep#1"]
    assert [event["payload"].get("depth") for event in recorded("step_end")] == [1, None] * 3
