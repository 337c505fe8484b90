"""Add up the launches of each kernel as they are read.

Percentages and rates are averaged by the time of each launch: a thousand launches of 10 µs count as much as one of 10
ms. Missing metrics are left out of the average.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from frx_graph.analyzers.kernels.occupancy_model import Limiter, find_limiters
from frx_graph.evidence.ncu.launch import Dimensions, KernelLaunch, NcuRule
from frx_graph.evidence.ncu.metrics import BY_NAME, Fold

_MOST_RULES = 20


@dataclass(frozen=True, slots=True)
class KernelSummary:
    """All launches of a kernel. `seconds` is None unless every launch was timed. `limiters` has the share of time, or
    of launches, for each limiter."""

    kernel: str
    device: str
    device_name: str
    compute_capability: str
    launches: int
    seconds: float | None
    values: Mapping[str, float]
    grid: Dimensions | None
    block: Dimensions | None
    limiters: Mapping[Limiter, float]
    rules: tuple[NcuRule, ...]


@dataclass(slots=True)
class _MetricTotal:
    """A metric over all launches, combined as in Nsight Compute: a mean, a sum, or the value that all share."""

    fold: Fold
    first: float
    same: bool = True
    count: int = 0
    total: float = 0.0
    timed: int = 0
    weighted: float = 0.0
    weight: float = 0.0

    def add(self, value: float, seconds: float | None) -> None:
        self.same &= value == self.first
        self.count += 1
        self.total += value
        if seconds:
            self.timed += 1
            self.weighted += value * seconds
            self.weight += seconds

    @property
    def value(self) -> float | None:
        if self.fold is Fold.SUM:
            return self.total
        if self.fold is Fold.FIRST:
            return self.first if self.same else None
        # A value measured once stays unchanged: a product and quotient would round it.
        by_time = self.count > 1 and self.timed == self.count and self.weight > 0
        return self.weighted / self.weight if by_time else self.total / self.count


@dataclass(slots=True)
class _LaunchTotals:
    first: KernelLaunch
    launches: int = 0
    timed: int = 0
    seconds: float = 0.0
    metrics: dict[str, _MetricTotal] = field(default_factory=dict)
    limited: dict[Limiter, int] = field(default_factory=lambda: defaultdict(int))
    limited_seconds: dict[Limiter, float] = field(default_factory=lambda: defaultdict(float))
    same_shape: bool = True
    rules: dict[tuple[str, str], NcuRule] = field(default_factory=dict)


class KernelTotals:
    """Add launches up by kernel, on each device."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, str, str], _LaunchTotals] = {}

    def add(self, launch: KernelLaunch) -> None:
        """Add a launch."""
        key = (launch.kernel, launch.device, launch.compute_capability)
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = _LaunchTotals(launch)
        seconds = launch.values.get("duration")
        kernel.launches += 1
        if seconds is not None:
            kernel.timed += 1
            kernel.seconds += seconds
        kernel.same_shape &= launch.grid == kernel.first.grid and launch.block == kernel.first.block
        metrics = kernel.metrics
        for name, value in launch.values.items():
            folded = metrics.get(name)
            if folded is None:
                sums = Fold.SUM if name.startswith("stall_samples") else Fold.MEAN
                folded = metrics[name] = _MetricTotal(BY_NAME[name].fold if name in BY_NAME else sums, value)
            folded.add(value, seconds)
        for limiter in find_limiters(launch.values):
            kernel.limited[limiter] += 1
            kernel.limited_seconds[limiter] += seconds or 0.0
        for rule in launch.rules:
            if len(kernel.rules) < _MOST_RULES:
                kernel.rules.setdefault((rule.name, rule.text), rule)

    def summarize_kernels(self) -> tuple[KernelSummary, ...]:
        """Return one summary per kernel: the longest first, then in order of their first launch."""
        found = [_summarize_kernel(kernel) for kernel in self._kernels.values()]
        return tuple(sorted(found, key=lambda summary: -(summary.seconds or 0.0)))


def _summarize_kernel(kernel: _LaunchTotals) -> KernelSummary:
    values = {
        name: folded.value
        for name, folded in kernel.metrics.items()
        # A sum over only some launches is not the kernel's. For stall samples, only shares are used.
        if folded.value is not None
        and (folded.fold is not Fold.SUM or folded.count == kernel.launches or name not in BY_NAME)
    }
    first = kernel.first
    seconds = kernel.seconds if kernel.timed == kernel.launches else None
    limited: Mapping[Limiter, float] = kernel.limited_seconds if seconds else kernel.limited
    return KernelSummary(
        kernel=first.kernel,
        device=first.device,
        device_name=first.device_name,
        compute_capability=first.compute_capability,
        launches=kernel.launches,
        seconds=seconds,
        values=values,
        grid=first.grid if kernel.same_shape else None,
        block=first.block if kernel.same_shape else None,
        limiters={limiter: amount / (seconds or kernel.launches) for limiter, amount in limited.items()},
        rules=tuple(kernel.rules.values()),
    )
