"""The programs in docs/sdk.md run, and record what the text says."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import frx_graph
from frx_graph.runs.sdk.batch_layout import MOST_TENSORS
from frx_graph.runs.sdk.event_writer import CAPACITY
from frx_graph.runs.sdk.parameter_layout import EACH
from frx_graph.runs.sdk.recorder import MOST_LAYOUTS
from frx_graph.runs.sdk.recording_settings import MAX_TRACE_BYTES
from frx_graph.runs.sdk.session import AutopilotSession
from frx_graph.runs.sdk.step import _MOST_METRICS, Step

DOCS = Path(__file__).parents[3] / "docs" / "sdk.md"
TEXT = DOCS.read_text()
RunProgram = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.integration
def test_programs_run(run_program: RunProgram, trace: Path) -> None:
    training, profile = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    folder = trace.parent.parent
    for program in (training, profile):
        ran = run_program(program, FRX_OUTPUT_DIR=str(folder))
        assert ran.returncode == 0, ran.stderr
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    ends = [event["payload"] for event in events if event["event_type"] == "step_end"]
    assert len(ends) == 4
    assert all(end["loss"] > 0 and end["batch_layout"] == 0 for end in ends)
    assert events[-1]["payload"] == {"window_state": "exported", "trace": "profiler/profiler_trace.json", "steps": 3}
    assert (folder / "profiler" / "profiler_trace.json").exists()


def test_calls_exist() -> None:
    table = TEXT.split("## ")[0]
    functions = re.findall(r"^\| `(\w+)\(", table, re.MULTILINE)
    assert functions
    assert [name for name in functions if not hasattr(frx_graph, name)] == []
    methods = [*re.findall(r"`session\.(\w+)\(", table), "backward_span", "optimizer_span", "span", "sync_span"]
    assert [name for name in methods if not hasattr(AutopilotSession, name)] == []
    assert [name for name in re.findall(r"`….(\w+)\(", table) if not hasattr(Step, name)] == []


def test_numbers_are_those_of_the_code() -> None:
    said = (
        f"(up to {MOST_TENSORS}, in any nesting",
        f"up to {MOST_LAYOUTS} different layouts",
        f"Memory: {CAPACITY:,} events",
        f"may become; {MAX_TRACE_BYTES},",
        f"up to {_MOST_METRICS} other figures",
    )
    assert [text for text in said if text not in " ".join(TEXT.split())] == []
    assert EACH == 8
