"""Rank kernels by their share of the time and the part of it that they could save.

`opportunity_score` is share x severity x gap: the share of the measured time, the severity of the limit, and the unused
part of the device's arithmetic. Without times there is no share, and scores of different kernels do not compare.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.kernels.gpu_view import GpuView, has_other_arithmetic
from frx_graph.analyzers.kernels.kernel_totals import KernelSummary
from frx_graph.analyzers.kernels.labels import KernelLabel
from frx_graph.analyzers.kernels.speed_of_light import LATENCY_BELOW_PCT, Bound, judge_speed_of_light


class Opportunity(enum.StrEnum):
    """A word for the score."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"


_ROUNDING = 1.01
"""Exports round counts a cycle to hundredths; a sum that is higher by less than this is the peak."""
_LEAST = {Opportunity.HIGH: 0.3, Opportunity.MEDIUM: 0.1, Opportunity.LOW: 0.02}


@dataclass(frozen=True, slots=True)
class Attribution:
    """One kernel. `runtime_share_pct` is None unless all times were measured. `mfu_pct` is None if some arithmetic,
    including that of tensor cores, was not counted, or the device's peak is unknown. `from_datasheet` means that
    utilisation or region use peaks of a data sheet, because the export has no counters for them."""

    kernel: KernelSummary
    runtime_share_pct: float | None
    mfu_pct: float | None
    roofline_region: str
    from_datasheet: bool
    opportunity: Opportunity
    score: float


def attribute_kernels(
    labelled: Sequence[tuple[KernelSummary, tuple[KernelLabel, ...], GpuView | None]],
) -> tuple[Attribution, ...]:
    """Attribute all kernels, in their order."""
    times = [kernel.seconds for kernel, _, _ in labelled]
    whole = sum(time for time in times if time is not None)
    known = None not in times and whole > 0
    return tuple(
        _attribute_kernel(kernel, labels, gpu, (kernel.seconds or 0.0) / whole if known else None)
        for kernel, labels, gpu in labelled
    )


def _attribute_kernel(
    kernel: KernelSummary, labels: Sequence[KernelLabel], gpu: GpuView | None, share: float | None
) -> Attribution:
    counted = None if has_other_arithmetic(kernel.kernel, kernel.values) else compute_fp32_utilisation(kernel.values)
    mfu = counted if counted is not None or gpu is None else gpu.mfu_pct
    sol = judge_speed_of_light(kernel.values, kernel.rules)
    region = _find_datasheet_region(gpu) if gpu is not None and sol.bound is Bound.UNKNOWN else None
    severity = max((label.score for label in labels), default=0.0)
    used = mfu if mfu is not None else max(sol.compute_pct or 0.0, kernel.values.get("tensor_pipe", 0.0))
    score = (1.0 if share is None else share) * severity * (1 - min(used, 100.0) / 100.0)
    return Attribution(
        kernel=kernel,
        runtime_share_pct=None if share is None else 100.0 * share,
        mfu_pct=mfu,
        roofline_region=region or _name_region(sol.bound),
        from_datasheet=region is not None or (counted is None and mfu is not None),
        opportunity=next((word for word, least in _LEAST.items() if score >= least), Opportunity.NONE),
        score=score,
    )


def _name_region(bound: Bound) -> str:
    return bound.value if bound in (Bound.BALANCED, Bound.UNKNOWN) else f"{bound}_bound"


def _find_datasheet_region(gpu: GpuView) -> str | None:
    """Return the data sheet's roofline region. Without counted arithmetic, only DRAM can show as the limit."""
    if gpu.region is not None:
        return gpu.region
    return _name_region(Bound.MEMORY) if gpu.dram_pct is not None and gpu.dram_pct >= LATENCY_BELOW_PCT else None


def compute_fp32_utilisation(values: Mapping[str, float]) -> float | None:
    """Return single-precision arithmetic over the device's peak, in percent. It is counted as in Nsight Compute's
    roofline: additions, multiplications, and twice the fused ones, per cycle. None if nothing was counted or
    executed, or if the counters contradict each other: all this arithmetic shares one unit, which has one peak."""
    names = ("fp32_add_per_cycle", "fp32_mul_per_cycle", "fp32_fma_per_cycle", "fp32_peak_fma_per_cycle")
    if any(name not in values for name in names):
        return None
    add, mul, fma, peak = (values[name] for name in names)
    done = add + mul + 2 * fma
    possible = 0 < done <= _ROUNDING * 2 * peak
    return min(100.0, 100.0 * done / (2 * peak)) if possible else None
