"""Finds a program whose calls fault in memory that the allocator has given back to the kernel in between.

Assumes: fresh processes were measured, since a process that has run other programs has another heap. How many pages a
call faults in differs between processes and calls, so the median of a process counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from frx_graph.measure.page_faults import AllocationCost, PageFaults
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.recompiles import find_first_site
from frx_graph.passes.severity import grade_share
from frx_graph.records import Basis, Effort, Evidence, Finding, Risk, Saving
from frx_graph.support.allocator import POOLING_VARIABLES

RULE = "FRX018"
FEWEST_FAULTS = 200
"""Faults a call: about 0.1 ms, at half a microsecond each."""
_SOURCE = "getrusage in a fresh process"
_VARIABLES = " ".join(f"{name}={value}" for name, value in POOLING_VARIABLES.items())
_FIX = (
    f"start the program with `{_VARIABLES}`; or compile with "
    '`torch.compile(model, backend="frx", options={"pool_allocations": True})`, which sets the same with `mallopt`; or '
    "preload jemalloc or tcmalloc with `LD_PRELOAD`; the process then keeps its peak memory until it ends"
)


def detect(analysis: Analysis) -> Iterable[Finding]:
    """Yield one finding for the program, unless pooled memory was measured to save no time."""
    cost = analysis.allocation_cost
    if cost is None or cost.default.per_call < FEWEST_FAULTS:
        return
    if cost.saved_pct and max(cost.saved_pct) <= 0:
        return
    pools = cost.pooled is None or cost.pooled.per_call < FEWEST_FAULTS
    proved = bool(cost.saved_pct) and min(cost.saved_pct) > 0 and pools
    saved = min(cost.saved_pct) if proved else None
    faults = cost.default.per_call
    yield Finding(
        rule=RULE,
        title=f"{faults:,} page faults a call: freed memory goes back to the kernel between calls",
        severity=grade_share(None if saved is None else saved / 100),
        site=find_first_site(analysis.facts),
        nodes=(),
        count_per_step=faults,
        bytes_per_step=None,
        saving=Saving(measured_pct=saved),
        effort=Effort.ONE_LINE,
        risk=Risk.LOW,
        fix=_FIX,
        confidence=confidence.MEASURED,
        basis=Basis.OBSERVED,
        evidence=tuple(_list_evidence(cost)),
    )


def _list_evidence(cost: AllocationCost) -> Iterator[Evidence]:
    others = f"; {cost.processes - 1} of {cost.processes} processes made few" if cost.processes > 1 else ""
    yield Evidence(f"with glibc's own settings, {_describe_faults(cost.default)}{others}", _SOURCE, Basis.OBSERVED)
    # Reports in text show the first two.
    yield Evidence(_describe_saving(cost), "call times of pairs of fresh processes", Basis.OBSERVED)
    if cost.pooled is not None:
        yield Evidence(f"with pooled memory, {_describe_faults(cost.pooled)}", _SOURCE, Basis.OBSERVED)


def _describe_faults(faults: PageFaults) -> str:
    size = f", at least {faults.bytes_per_call / 2**20:.1f} MiB" if faults.per_call else ""
    return (
        f"a call makes {faults.per_call:,} page faults{size} "
        f"(median of {len(faults.calls)} calls, from {min(faults.calls):,} to {max(faults.calls):,})"
    )


def _describe_saving(cost: AllocationCost) -> str:
    if cost.disturbance:
        return f"the time that they cost is unknown: a measurement was disturbed ({cost.disturbance})"
    if not cost.saved_pct:
        return "the time that they cost is unknown: it was not measured"
    least, most = min(cost.saved_pct), max(cost.saved_pct)
    claim = "" if least > 0 else ", so a gain is not proved"
    pairs = f"{len(cost.saved_pct)} pairs of processes"
    return f"pooled memory saves from {least:.1f} to {most:.1f}% of a call in {pairs}{claim}"


DETECTOR = Detector(RULE, "page_fault_churn", detect)
