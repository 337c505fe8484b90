"""The benchmark of the SDK's parts works, and each part does record what it is named after."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import sdk_parts

from frx_graph.runs.sdk.recording_settings import read_settings
from frx_graph.runs.sdk.session import AutopilotSession


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        ("nothing", {}),
        ("loader", {"dataloader_span": 1}),
        ("step", {"step_start": 1, "step_end": 1}),
        ("step, batch", {"step_start": 1, "step_end": 1, "shape_snapshot": 1}),
        ("step, parameters", {"step_start": 1, "step_end": 1, "shape_snapshot": 1}),
        ("step, loss and metric", {"step_start": 1, "step_end": 1}),
        ("four spans", {"phase_span": 3, "memcpy_span": 1}),
    ],
)
def test_parts(tmp_path: Path, part: str, wanted: dict[str, int]) -> None:
    trace = tmp_path / "trace.jsonl"
    session = AutopilotSession(read_settings({"FRX_RAW_TRACE_PATH": str(trace)}))
    calls = sdk_parts.parts(session)
    session.flush()
    before = kinds(trace)
    calls[part]()
    session.close()
    assert kinds(trace) - before - Counter(system_info=1) == wanted


def kinds(trace: Path) -> Counter[str]:
    lines = trace.read_text().splitlines() if trace.exists() else []
    return Counter(json.loads(line)["event_type"] for line in lines)
