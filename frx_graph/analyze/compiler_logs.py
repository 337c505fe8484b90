"""Advise on a program from logs alone: of what torch compiled, or of the graphs that cuDNN built."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from frx_graph.advice import Advice, Environment, GraphSummary, Timings, Totals, is_quick_win
from frx_graph.analyze.trace_advice import UNKNOWN
from frx_graph.analyzers.compilations import find_unstable_frames, get_site, group_frames, list_breaks
from frx_graph.analyzers.cudnn_graphs import find_plain_convolutions
from frx_graph.evidence.cudnn_log import read_cudnn_log
from frx_graph.evidence.file_kind import FileKind
from frx_graph.evidence.torch_log import Compilation, read_torch_log
from frx_graph.passes.severity import rank_findings
from frx_graph.records import Finding, Refusal
from frx_graph.reports.render.quantities import format_count
from frx_graph.version import __version__

_ONLY_COMPILATIONS = "a log of torch tells what was compiled, and not what ran: `frx advise` and a trace show copies"
_ONLY_GRAPHS = "a log of cuDNN tells which graphs were built, and neither how often they ran nor how long"


def analyze_torch_log(path: Path) -> Advice:
    """Return what the log at `path` shows: frames that were compiled again, with the guards that failed, and graph
    breaks. Raises `EvidenceError` if it cannot be read."""
    started = time.perf_counter()
    log = read_torch_log(path)
    read_s = time.perf_counter() - started
    frames = group_frames(log)
    seconds = [one.seconds for one in log.compilations if one.seconds is not None]
    took = f" took {sum(seconds):.1f} s" if seconds else ", their times unknown"
    compiled = f"{format_count(len(log.compilations), 'compilation')} of {format_count(len(frames), 'frame')}{took}"
    several = len({process for process, _ in frames}) > 1
    refusals = [Refusal("layout copies", _ONLY_COMPILATIONS), *list_breaks(log)]
    refusals += _note_unreadable(log.unreadable, "record")
    refusals.append(Refusal("compilations", compiled))
    return _build_advice(
        path,
        device=UNKNOWN,
        graphs=[_summarize_frame(versions, several=several) for versions in frames.values()],
        operators=sum(one.operators or 0 for one in log.compilations),
        findings=list(find_unstable_frames(log)),
        refusals=refusals,
        read_s=read_s,
    )


def analyze_cudnn_log(path: Path) -> Advice:
    """Return the convolutions of the log at `path` that cuDNN computes in plain layout. Raises `EvidenceError` if it
    cannot be read."""
    started = time.perf_counter()
    log = read_cudnn_log(path)
    read_s = time.perf_counter() - started
    refusals = [Refusal("times", _ONLY_GRAPHS), *_note_unreadable(log.unreadable, "graph")]
    if log.rebuilt:
        again = f"{log.rebuilt:,} of {format_count(log.graphs, 'graph')} had been built before"
        refusals.append(Refusal("graphs", f"{again}: keep a graph once it is built"))
    operators = sum(log.operations.values())
    return _build_advice(
        path,
        device="cuda",
        graphs=[GraphSummary("cudnn", f"{format_count(log.graphs, 'graph')} of cuDNN", train=False, ops=operators)],
        operators=operators,
        findings=list(find_plain_convolutions(log)),
        refusals=refusals,
        read_s=read_s,
    )


READERS: dict[FileKind, Callable[[Path], Advice]] = {
    FileKind.TORCH_LOG: analyze_torch_log,
    FileKind.CUDNN_LOG: analyze_cudnn_log,
}


def _build_advice(
    path: Path,
    *,
    device: str,
    graphs: Sequence[GraphSummary],
    operators: int,
    findings: Sequence[Finding],
    refusals: Sequence[Refusal],
    read_s: float,
) -> Advice:
    return Advice(
        target=path.name,
        environment=Environment(
            frx_version=__version__,
            torch_version=UNKNOWN,
            python_version=UNKNOWN,
            platform=UNKNOWN,
            device=device,
            device_name=UNKNOWN,
            inner=UNKNOWN,
            threads=None,
        ),
        graphs=tuple(graphs),
        findings=rank_findings(findings),
        refusals=tuple(refusals),
        copies=(),
        totals=Totals(
            ops_scanned=operators,
            copies_per_step=None,
            copy_bytes_per_step=None,
            bandwidth_overhead_pct=None,
            quick_wins=sum(map(is_quick_win, findings)),
        ),
        timings=Timings(capture_s=read_s, analysis_s=0.0),
    )


def _note_unreadable(count: int, noun: str) -> list[Refusal]:
    return [Refusal("log", f"{format_count(count, noun)} could not be read")] if count else []


def _summarize_frame(versions: Sequence[Compilation], *, several: bool) -> GraphSummary:
    first = versions[0]
    process = f"process {first.process}, " if several else ""
    return GraphSummary(
        graph_id=f"{process}{first.frame}/0",
        origin=f"{first.function or UNKNOWN} at {get_site(first)}",
        train=False,
        ops=max((one.operators or 0 for one in versions), default=0),
    )
