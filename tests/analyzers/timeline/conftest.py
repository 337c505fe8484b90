"""Runs drawn by hand, in microseconds: written as a trace file, read, and analysed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frx_graph.analyze.trace import TraceEvidence, analyze_run

MAIN = {"pid": 1, "tid": 1}
ENGINE = {"pid": 1, "tid": 2}


class RunSketch:
    """Collects events; `analyse` writes and reads them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[dict[str, Any]] = []
        self.metadata: dict[str, Any] = {
            "deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-32GB", "totalGlobalMem": 16 << 30}]
        }

    def event(self, category: str, name: str, start: float, end: float, where: dict[str, int], **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start, "args": args, **where}
        )

    def step(self, number: int, start: float, end: float) -> None:
        self.event("user_annotation", f"ProfilerStep#{number}", start, end, MAIN)

    def op(self, name: str, start: float, end: float, *, engine: bool = False, **args: Any) -> None:
        self.event("cpu_op", name, start, end, ENGINE if engine else MAIN, **args)

    def load(self, start: float, end: float) -> None:
        self.event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, end, MAIN)

    def call(self, name: str, start: float, end: float, **args: Any) -> None:
        self.event("cuda_runtime", name, start, end, MAIN, **args)

    def device(
        self, category: str, name: str, launched: float | None, start: float, end: float, stream: int = 7, **args: Any
    ) -> None:
        """Something that a device does, called for at `launched`; None: the call was not recorded."""
        number = len(self.events) + 1
        if launched is not None:
            self.call("cudaLaunchKernel", launched, launched + 1, correlation=number)
        where = {"pid": 0, "tid": stream}
        self.event(category, name, start, end, where, device=0, stream=stream, correlation=number, **args)

    def kernel(
        self, launched: float | None, start: float, end: float, name: str = "volta_sgemm_64x64_nt", **args: Any
    ) -> None:
        self.device("kernel", name, launched, start, end, **args)

    def allocated(self, held: int, kind: int = 1) -> None:
        """What a device holds after an allocation, as torch says it; `kind` 0 is the host."""
        args = {"Device Type": kind, "Device Id": 0, "Bytes": 512, "Total Allocated": held, "Total Reserved": held}
        self.events.append({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "ts": 5, "args": args})

    def analyse(self) -> TraceEvidence:
        self.path.write_text(json.dumps({**self.metadata, "traceEvents": self.events}))
        return analyze_run(self.path)


@pytest.fixture
def run(tmp_path: Path) -> RunSketch:
    return RunSketch(tmp_path / "trace.json")
