"""Layers made by hand: source and PTX from text, counters by their values, runs by their kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from frx_graph.analyze.trace import analyze_run
from frx_graph.analyzers.cuda.analysis import detect_cuda_defects
from frx_graph.analyzers.kernels.analysis import analyze_kernels
from frx_graph.analyzers.kernels.kernel_totals import KernelTotals
from frx_graph.analyzers.kernels.ptx_analysis import analyze_ptx_module
from frx_graph.analyzers.layers import Layers, NcuLayer, PtxLayer, SourceLayer, TraceLayer
from frx_graph.analyzers.reconcile.reconciliation import Reconciliation, reconcile
from frx_graph.evidence.cuda.parsing import parse_cuda
from frx_graph.evidence.ncu.launch import KernelLaunch, NcuExport, NcuRule
from frx_graph.evidence.ptx.parsing import parse_ptx
from frx_graph.evidence.ptx.ptxas import Assembled

ZOO = Path(__file__).parents[2] / "data" / "cuda"


class Program:
    """Collects the layers of one program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.layers: dict[str, Any] = {}

    def source(self, text: str, name: str = "kernel.cu") -> Program:
        source = parse_cuda(text, name)
        self.layers["source"] = SourceLayer(source, detect_cuda_defects(source))
        return self

    def zoo(self, name: str) -> Program:
        return self.source((ZOO / f"{name}.cu").read_text(), f"{name}.cu")

    def ptx(self, assembled: Mapping[str, Assembled] | None = None, **bodies: str) -> Program:
        """Entries by their mangled names."""
        entries = "\n".join(
            f".visible .entry {name}(.param .u64 p)\n{{\n{body} ret;\n}}" for name, body in bodies.items()
        )
        module = parse_ptx(f".version 8.0\n.target sm_80\n.address_size 64\n{entries}\n", "kernel.ptx")
        reason = None if assembled is not None else "there is no ptxas"
        self.layers["ptx"] = PtxLayer(module, analyze_ptx_module(module, assembled or {}), reason)
        return self

    def ncu(self, *, rules: tuple[NcuRule, ...] = (), **kernels: Mapping[str, float]) -> Program:
        return self.counters(kernels, rules)

    def counters(self, kernels: Mapping[str, Mapping[str, float]], rules: tuple[NcuRule, ...] = ()) -> Program:
        """Values of launches by the kernel's name."""
        totals = KernelTotals()
        for number, (name, values) in enumerate(kernels.items()):
            launch = KernelLaunch(
                number=str(number),
                process="1",
                kernel=name,
                device="0",
                compute_capability="8.6",
                grid=(64, 1, 1),
                block=(128, 1, 1),
                source="report.csv",
                line=number + 2,
                values=values,
                rules=rules,
            )
            totals.add(launch)
        self.layers["ncu"] = NcuLayer(NcuExport("report.csv"), analyze_kernels(totals.summarize_kernels()))
        return self

    def run(self, *kernels: str, grid: tuple[int, ...] = (64, 1, 1), block: tuple[int, ...] = (128, 1, 1)) -> Program:
        """One launch of each, of 100 us, back to back."""
        events: list[dict[str, Any]] = []
        main = {"pid": 1, "tid": 1}
        for number, name in enumerate(kernels, start=1):
            start = 200 * number
            shape = {"grid": grid, "block": block, "device": 0, "stream": 7}
            events += [
                {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": start, "dur": 20, **main},
                {
                    "ph": "X",
                    "cat": "cuda_runtime",
                    "name": "cudaLaunchKernel",
                    "ts": start + 1,
                    "dur": 2,
                    "args": {"correlation": number},
                    **main,
                },
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": name,
                    "ts": start + 5,
                    "dur": 100,
                    "pid": 0,
                    "tid": 7,
                    "args": {"correlation": number, **shape},
                },
            ]
        path = self.folder / "trace.json"
        path.write_text(json.dumps({"traceEvents": events}))
        evidence = analyze_run(path)
        self.layers["trace"] = TraceLayer(evidence.trace, evidence.run)
        return self

    def reconcile(self, *names: str) -> Reconciliation:
        """All layers, or those of these names."""
        return reconcile(Layers(**{name: self.layers[name] for name in names or self.layers}))

    def told(self, *names: str) -> dict[tuple[str, str], str]:
        """Confidence by diagnosis and kernel."""
        found = self.reconcile(*names).diagnoses
        return {(one.rule.name, one.kernel.function): one.confidence.label for one in found}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)
