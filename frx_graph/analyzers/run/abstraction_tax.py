"""Measure the framework abstraction tax: device time lost because work is launched in small pieces.

Idle time explained by waits for input, copies or synchronisation is subtracted first. The rest is multiplied by the
share of small kernels.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frx_graph.analyzers.run.steps import Activity
from frx_graph.analyzers.timeline.labels import FEWEST_KERNELS, HOST_BOUND, SMALL_KERNELS
from frx_graph.analyzers.trace.kernel_names import KernelFamily

if TYPE_CHECKING:
    from frx_graph.analyzers.run.figures import ScopeFigures

HIGH_TAX, MEDIUM_TAX = 50.0, 100.0 * HOST_BOUND
"""Half of the device's time, the line at which a run is launch-bound. Reasoned, not calibrated by speed-ups."""
UNFUSED = 0.5
"""Half of the kernels compute elementwise, and could be fused with the kernels before or after them."""
_FUSIBLE = (KernelFamily.ELEMENTWISE, KernelFamily.NORMALIZATION, KernelFamily.REDUCTION)
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "hipGraphLaunch")


class TaxSeverity(enum.StrEnum):
    """Bands of the score."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Contributor:
    """A possible source of the tax. `inferred` means an opportunity, not an observation."""

    name: str
    inferred: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class AbstractionTax:
    """The tax. `score` is 0..100. Shares are 0..1: idle and explained shares of device time, and the fragmentation by
    small kernels. `sampled` means that it comes from samples and totals, not from a profiler's timeline."""

    score: float
    severity: TaxSeverity
    idle: float
    explained: float
    fragmentation: float
    sampled: bool
    contributors: tuple[Contributor, ...]


def compute_abstraction_tax(figures: ScopeFigures) -> AbstractionTax | None:
    """Return the tax; None if no profiler recorded kernels, or the idle time is unknown."""
    trace, known = figures.trace, figures.kernels
    if trace is not None and trace.launches is not None and trace.host_bound_share is not None:
        launches, busy = trace.launches, trace.busy_share or 0.0
        after_waits = trace.idle_after_waits_share or 0.0
        unexplained = max(0.0, trace.host_bound_share - after_waits)
        if launches.kernels < FEWEST_KERNELS:
            return None
        return _compute_tax(figures, 1 - busy, unexplained, launches.small / launches.kernels, sampled=False)
    busy_samples = figures.sampled_busy
    if known is None or known.small_kernels is None or busy_samples is None or not figures.timed:
        return None
    if known.kernels is None or known.kernels < FEWEST_KERNELS:
        return None
    stalls = sum(figures.means.get(activity, 0.0) for activity in (Activity.LOADER, Activity.H2D, Activity.SYNC))
    idle = 1 - busy_samples
    return _compute_tax(figures, idle, max(0.0, idle - stalls), known.small_kernels, sampled=True)


def _compute_tax(
    figures: ScopeFigures, idle: float, unexplained: float, fragmentation: float, *, sampled: bool
) -> AbstractionTax:
    # Rounded, so that a band's limit in percent is the same limit here.
    score = round(min(100.0, 100.0 * unexplained * fragmentation), 6)
    severity = TaxSeverity.HIGH if score >= HIGH_TAX else TaxSeverity.MEDIUM if score >= MEDIUM_TAX else TaxSeverity.LOW
    contributors = tuple(_find_contributors(figures, fragmentation)) if score >= MEDIUM_TAX else ()
    return AbstractionTax(score, severity, idle, max(0.0, idle - unexplained), fragmentation, sampled, contributors)


def _find_contributors(figures: ScopeFigures, fragmentation: float) -> Iterator[Contributor]:
    if fragmentation >= SMALL_KERNELS:
        yield Contributor("Kernel launch fragmentation", False, f"{fragmentation:.0%} of the kernels are small")
    trace = figures.trace
    if trace is None:
        return
    captured = any(call.name.startswith(_GRAPH_LAUNCHES) for call in trace.host.calls)
    shapes = figures.shapes or trace.shapes
    if not captured and shapes is not None and not shapes.changes:
        yield Contributor("Missing graph capture", True, "shapes stay the same, and no graph is launched")
    fusible = sum(count for family, (count, _) in trace.kernels.families.items() if family in _FUSIBLE)
    share = fusible / max(1, trace.kernels.count)
    if share >= UNFUSED:
        yield Contributor("Unfused elementwise operations", True, f"{share:.0%} of the kernels could be fused")
