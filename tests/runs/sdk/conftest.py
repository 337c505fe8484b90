"""A file that this process records to, and what is in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frx_graph.runs.sdk import recording_settings
from frx_graph.runs.sdk.session import AutopilotSession
from frx_graph.runs.sdk.step import HERE

Event = dict[str, Any]


def events_in(path: Path) -> list[Event]:
    return [json.loads(line) for line in path.read_bytes().decode("ascii").splitlines()]


@pytest.fixture(autouse=True)
def _recording_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recording_settings, "_SAID", set())
    for name in [name for name in os.environ if name.startswith("FRX_")]:
        monkeypatch.delenv(name)
    yield
    for name in [name for name in os.environ if name.startswith("FRX_")]:
        monkeypatch.delenv(name)
    AutopilotSession.from_env()
    assert HERE.step is None


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "run" / "raw" / "trace.jsonl"
    monkeypatch.setenv("FRX_RAW_TRACE_PATH", str(path))
    # Who has begun to record goes on so until asked to look again.
    AutopilotSession.from_env()
    return path


@pytest.fixture
def recorded(trace: Path) -> Callable[..., list[Event]]:
    """What this process has recorded, of one type if it is named."""

    def read(event_type: str | None = None) -> list[Event]:
        AutopilotSession.from_env().flush()
        return [event for event in events_in(trace) if event_type in (None, event["event_type"])]

    return read


@pytest.fixture
def run_program(trace: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program that records to the trace."""

    def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
            capture_output=True,
            text=True,
        )

    return run
