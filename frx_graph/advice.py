"""The advice on one program, which `advise` returns and every report renders: frozen records without graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Ge, Interval

from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.records import Copy, Effort, Finding, Refusal, Risk
from frx_graph.support.json_fields import Count

if TYPE_CHECKING:
    from pydantic import ConfigDict

PerSecond = Annotated[float, Interval(ge=1.0, le=1e24)]
"""At most a million times a device's rate, so that arithmetic on what a file claims stays finite."""


@dataclass(frozen=True, slots=True)
class PeakFlops:
    """Peak arithmetic of the device in one dtype."""

    dtype: str
    flops_per_s: PerSecond
    kernel: str | None = None
    """The operator that reached it; null if unknown."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Environment in which the advice was made. Bandwidth and peaks are null if the device was not calibrated,
    `threads` if the program was only seen through a trace."""

    frx_version: str
    torch_version: str
    python_version: str
    platform: str
    device: str
    device_name: str
    inner: str
    """The compiler whose program the advice is about: `eager`, `inductor`, ..."""
    threads: int | None
    bandwidth_bytes_per_s: PerSecond | None = None
    peak_flops: tuple[PeakFlops, ...] = ()
    contract: str | None = None
    """The operator layout contract that the predictions rest on."""
    calibrated_under_load: bool = False
    """True if other programs used the processors while bandwidth and peaks were measured: the device may reach more."""
    documented: str = ""
    """Where bandwidth and peaks of a device that is not here are documented; empty: they were measured."""


@dataclass(frozen=True, slots=True)
class LayoutSpan:
    """Consecutive operators of one module that run in one layout: a block in the picture of the graph."""

    module_path: str
    phase: Phase
    layout: str
    ops: Count
    bytes: Count
    copies: Count
    copy_bytes: Count
    """The part of `bytes` that layout copies make."""


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """All calls of one operator at one call site."""

    operator: str
    site: CallSite
    phase: Phase
    dtype: str
    count: Count
    flops: Count
    bytes: Count
    seconds: Annotated[float, Ge(0)] | None = None
    """Measured time of all calls; null unless a trace or an observation timed them."""


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """One captured graph, in numbers and spans."""

    graph_id: str
    origin: str
    train: bool
    ops: Count
    spans: tuple[LayoutSpan, ...] = ()
    roofline: tuple[RooflinePoint, ...] = ()


def is_quick_win(finding: Finding) -> bool:
    """Return True if one line fixes the finding at low or medium risk, and it is known to save time or, if time was not
    measured, traffic."""
    measured = finding.saving.measured_pct
    if measured is None and finding.rests_on_times:
        measured = finding.saving.predicted_pct_max
    saves = bool(finding.bytes_per_step) if measured is None else measured > 0
    return finding.effort is Effort.ONE_LINE and finding.risk is not Risk.HIGH and saves


@dataclass(frozen=True, slots=True)
class Totals:
    """The whole step."""

    ops_scanned: Count
    copies_per_step: Count | None
    """Null if the evidence does not show copies."""
    copy_bytes_per_step: Count | None
    """Null if a trace shows copies without their shapes."""
    bandwidth_overhead_pct: float | None
    """Copy traffic in percent of all traffic."""
    quick_wins: Count
    """Findings that one line fixes at low or medium risk, and that save time or traffic."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds that each part of the advice took; null for a part that did not run."""

    capture_s: float | None
    analysis_s: float
    measure_s: float | None = None
    observe_s: float | None = None


@dataclass(frozen=True, slots=True)
class TriedCandidate:
    """A candidate that the autopilot tried on a graph."""

    name: str
    """The name that `frx trial --candidate` takes; several that were tried together are joined by "and"."""
    result: Literal["promoted", "rejected", "equivalent", "inconclusive"]
    reason: str
    ratio: Annotated[float, Ge(0)] | None
    """Median time of the baseline over that of the candidate: 1.1 is 10 % faster. Null: nothing was measured."""


@dataclass(frozen=True, slots=True)
class AutopilotSearch:
    """The autopilot's search for a plan of one graph in this process."""

    graph_id: str
    signature: str
    """The graph's name in the ledger."""
    seconds: Annotated[float, Ge(0)]
    """Time that the program has waited for it."""
    tried: tuple[TriedCandidate, ...]
    """In order."""
    fastest: str | None
    """The name of the fastest promoted candidate, which is applied; null: none was promoted."""
    end: str
    """The reason why it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Ranked layout findings for one PyTorch program, what was refused and why, and the numbers behind them.

    Written as JSON it is the document `frx_advice_v1`. Within v1 fields may be added; none is removed and none changes
    its meaning, so readers pass over fields that they do not know. Unknown is null.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {
        "allow_inf_nan": False,
        "use_attribute_docstrings": True,
    }

    schema: Literal["frx_advice_v1"] = "frx_advice_v1"
    target: str
    environment: Environment
    graphs: tuple[GraphSummary, ...]
    """Empty if nothing could be captured: then an absence of findings says nothing about the program."""
    findings: tuple[Finding, ...]
    """Best first."""
    refusals: tuple[Refusal, ...]
    totals: Totals
    timings: Timings
    copies: tuple[Copy, ...]
    """All predicted layout copies of one step; in advice on a trace those that it shows, with basis `observed`."""
    observed: tuple[Copy, ...] | None = None
    """The layout copies that a real step showed; null if none was run."""
    autopilot: tuple[AutopilotSearch, ...] = ()
    """What the autopilot has tried in this process, if it is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceSet:
    """The advice on several targets, in the order in which they were named."""

    schema: Literal["frx_advice_set_v1"] = "frx_advice_set_v1"
    advice: tuple[Advice, ...]
