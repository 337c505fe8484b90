"""Advise on a program from a profiler trace alone."""

from __future__ import annotations

import time
from pathlib import Path

from frx_graph.advice import Advice, Environment, GraphSummary, Timings, Totals, is_quick_win
from frx_graph.analyzers.trace.analysis import average_per_step, prepare_trace
from frx_graph.analyzers.trace.findings import GRAPH_ID, find_layout_copies, record_copies
from frx_graph.analyzers.trace.gaps import get_device_name, list_gaps
from frx_graph.analyzers.trace.memory_bound import find_memory_bound
from frx_graph.analyzers.trace.permutes import find_permutes
from frx_graph.analyzers.trace.roofline import compute_roofline_points, measure_work
from frx_graph.evidence.trace.reading import read_trace
from frx_graph.passes.severity import rank_findings
from frx_graph.rules.gpu_profile import find_gpu
from frx_graph.version import __version__

UNKNOWN = "unknown"


def analyze_trace(path: str | Path, model_name: str | None = None) -> Advice:
    """Return the ranked layout findings that the torch.profiler trace at `path` supports.

    `model_name` names the program in the report; the default is the file's name. Raises `EvidenceError` if the file is
    missing, truncated, hostile or not such a trace.
    """
    path = Path(path)
    started = time.perf_counter()
    trace = read_trace(path)
    read_s = time.perf_counter() - started
    analysis = prepare_trace(trace)
    gpu = find_gpu(get_device_name(analysis))
    peaks = None if gpu is None else gpu.peaks
    work = measure_work(analysis)
    findings = [*find_layout_copies(analysis), *find_permutes(analysis), *find_memory_bound(analysis, work, peaks)]
    # Operators per step, or pieces of device work if the trace has no operators.
    scanned = average_per_step(len(analysis.scanned or analysis.work), analysis.steps)
    sizes = [copy.bytes for copy in analysis.copies]
    known = sum(size for size in sizes if size is not None)
    return Advice(
        target=model_name or path.name,
        environment=Environment(
            frx_version=__version__,
            torch_version=UNKNOWN,
            python_version=UNKNOWN,
            platform=UNKNOWN,
            # torch also calls AMD devices "cuda".
            device="cuda" if analysis.on_device else "cpu",
            device_name=get_device_name(analysis),
            inner="inductor" if analysis.compiled else "eager",
            threads=None,
        ),
        graphs=(
            GraphSummary(
                graph_id=GRAPH_ID,
                origin=trace.path.name,
                train=any(sequence is not None for sequence in analysis.tree.backward_of),
                ops=scanned,
                roofline=compute_roofline_points(analysis, work),
            ),
        ),
        findings=rank_findings(findings),
        refusals=list_gaps(analysis, peaks),
        copies=record_copies(analysis, analysis.copies),
        totals=Totals(
            ops_scanned=scanned,
            copies_per_step=average_per_step(len(sizes), analysis.steps),
            copy_bytes_per_step=known // len(analysis.steps) if None not in sizes else None,
            # A trace does not record the total bytes that a step moves.
            bandwidth_overhead_pct=None,
            quick_wins=sum(map(is_quick_win, findings)),
        ),
        timings=Timings(capture_s=read_s, analysis_s=time.perf_counter() - started - read_s),
    )
