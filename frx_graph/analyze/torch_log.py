"""Advise on a program from the structured log of what was compiled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from frx_graph.advice import Advice, Environment, GraphSummary, Timings, Totals, is_quick_win
from frx_graph.analyze.trace_advice import UNKNOWN
from frx_graph.analyzers.compilations import find_unstable_frames, get_site, group_frames, list_breaks
from frx_graph.evidence.torch_log import Compilation, read_torch_log
from frx_graph.passes.severity import rank_findings
from frx_graph.records import Refusal
from frx_graph.reports.render.quantities import format_count
from frx_graph.version import __version__

_ONLY_COMPILATIONS = "a log of torch tells what was compiled, and not what ran: `frx advise` and a trace show copies"


def analyze_torch_log(path: Path, model_name: str | None = None) -> Advice:
    """Return what the log at `path` shows: frames that were compiled again, with the guards that failed, and graph
    breaks. Raises `EvidenceError` if it cannot be read."""
    started = time.perf_counter()
    log = read_torch_log(path)
    read_s = time.perf_counter() - started
    findings = list(find_unstable_frames(log))
    frames = group_frames(log)
    operators = sum(one.operators or 0 for one in log.compilations)
    seconds = sum(one.seconds or 0.0 for one in log.compilations)
    refusals = [Refusal("layout copies", _ONLY_COMPILATIONS), *list_breaks(log)]
    if log.unreadable:
        refusals.append(Refusal("log", f"{format_count(log.unreadable, 'record')} could not be read"))
    compiled = f"{format_count(len(log.compilations), 'compilation')} of {format_count(len(frames), 'frame')}"
    refusals.append(Refusal("compilations", f"{compiled} took {seconds:.1f} s"))
    return Advice(
        target=model_name or path.name,
        environment=Environment(
            frx_version=__version__,
            torch_version=UNKNOWN,
            python_version=UNKNOWN,
            platform=UNKNOWN,
            device=UNKNOWN,
            device_name=UNKNOWN,
            inner="inductor",
            threads=None,
        ),
        graphs=tuple(_summarize_frame(number, versions) for number, versions in frames.items()),
        findings=rank_findings(findings),
        refusals=tuple(refusals),
        copies=(),
        totals=Totals(
            ops_scanned=operators,
            copies_per_step=0,
            copy_bytes_per_step=None,
            bandwidth_overhead_pct=None,
            quick_wins=sum(map(is_quick_win, findings)),
        ),
        timings=Timings(capture_s=read_s, analysis_s=time.perf_counter() - started - read_s),
    )


def _summarize_frame(number: int, versions: Sequence[Compilation]) -> GraphSummary:
    first = versions[0]
    return GraphSummary(
        graph_id=f"{number}/0",
        origin=f"{first.function or UNKNOWN} at {get_site(first)}",
        train=False,
        ops=max((one.operators or 0 for one in versions), default=0),
    )
