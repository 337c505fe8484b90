"""The advice on one program: what `advise` returns and every report renders. Frozen, and free of graphs."""

from __future__ import annotations

from dataclasses import dataclass

from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.records import Copy, Effort, Finding, Refusal, Risk


@dataclass(frozen=True, slots=True)
class Environment:
    """Where the advice was made. Bandwidth and peaks are None where the device was not calibrated, `threads` where the
    program was only seen through a trace."""

    frx_version: str
    torch_version: str
    python_version: str
    platform: str
    device: str
    device_name: str
    inner: str
    threads: int | None
    bandwidth_bytes_per_s: float | None = None
    peak_flops: tuple[tuple[str, float], ...] = ()
    contract: str | None = None


@dataclass(frozen=True, slots=True)
class LayoutSpan:
    """Consecutive operators of one module that run in one layout: a block in the picture of the graph.

    `bytes` is all traffic of the span's operators, `copy_bytes` the part that layout copies make.
    """

    module_path: str
    phase: Phase
    layout: str
    ops: int
    bytes: int
    copies: int
    copy_bytes: int


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """All calls of one operator at one call site. `seconds` is None unless a trace or an observation timed them."""

    operator: str
    site: CallSite
    phase: Phase
    dtype: str
    count: int
    flops: int
    bytes: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """One captured graph, in numbers and spans."""

    graph_id: str
    origin: str
    train: bool
    ops: int
    spans: tuple[LayoutSpan, ...] = ()
    roofline: tuple[RooflinePoint, ...] = ()


def is_quick_win(finding: Finding) -> bool:
    """One line fixes it, at low or medium risk, and it is known to save time, or where that was not measured
    traffic."""
    measured = finding.saving.measured_pct
    saves = bool(finding.bytes_per_step) if measured is None else measured > 0
    return finding.effort is Effort.ONE_LINE and finding.risk is not Risk.HIGH and saves


@dataclass(frozen=True, slots=True)
class Totals:
    """The whole step. `bandwidth_overhead_pct` is copy traffic in percent of all traffic. `quick_wins` counts the
    findings for which `is_quick_win` holds. `copy_bytes_per_step` is None where a trace shows copies without
    their shapes."""

    ops_scanned: int
    copies_per_step: int
    copy_bytes_per_step: int | None
    bandwidth_overhead_pct: float | None
    quick_wins: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds that each part of the advice took; None for a part that did not run."""

    capture_s: float | None
    analysis_s: float
    measure_s: float | None = None
    observe_s: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """Ranked findings, what was refused and why, and the numbers behind them.

    `copies` are the predicted layout copies; `observed` those that a real step showed, None where none was run. In
    advice on a trace nothing is predicted: `copies` are those that the trace shows, each with basis OBSERVED.
    """

    target: str
    environment: Environment
    graphs: tuple[GraphSummary, ...]
    findings: tuple[Finding, ...]
    refusals: tuple[Refusal, ...]
    copies: tuple[Copy, ...]
    totals: Totals
    timings: Timings
    observed: tuple[Copy, ...] | None = None
