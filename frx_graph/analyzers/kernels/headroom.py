"""How much faster a kernel could get, at most, before something else stops it: bounds from its counters, no forecasts.

A kernel that computes at `c` and moves memory at `m` percent of the peaks takes `max(c, m)` percent of its time for the
one, and could not take less without doing less of it. Who moves fewer bytes is stopped by compute; who fetches whole
sectors instead of parts of them moves that many fewer. Where the counters do not tell a bound there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from frx_graph.analyzers.kernels.labels import COALESCED_SECTORS, sectors_per_load
from frx_graph.analyzers.kernels.speed_of_light import speed_of_light

_LEAST_PCT = 1.0
"""Percent of a peak below which a bound of a hundred times and more says nothing."""


def most_speedup(label: str, values: Mapping[str, float]) -> float | None:
    """Percent of speed that mending this bottleneck alone can add at most; None where nothing bounds it."""
    bound = _BOUNDS.get(label)
    return None if bound is None else bound(values)


def _to_the_peak(values: Mapping[str, float]) -> float | None:
    sol = speed_of_light(values)
    if sol.compute_pct is None or sol.memory_pct is None:
        return None
    return _faster(100.0, max(sol.compute_pct, sol.memory_pct))


def _to_compute(values: Mapping[str, float]) -> float | None:
    sol = speed_of_light(values)
    if sol.compute_pct is None or sol.memory_pct is None:
        return None
    return _faster(max(sol.memory_pct, sol.compute_pct), sol.compute_pct)


def _to_whole_sectors(values: Mapping[str, float]) -> float | None:
    sectors, limit = sectors_per_load(values), _to_compute(values)
    if sectors is None or limit is None:
        return None
    return min(limit, _faster(sectors, COALESCED_SECTORS) or 0.0)


def _faster(now: float, then: float) -> float | None:
    return None if then < _LEAST_PCT else max(0.0, 100.0 * (now / then - 1.0))


_BOUNDS: Mapping[str, Callable[[Mapping[str, float]], float | None]] = {
    "memory_bandwidth_bound": _to_compute,
    "uncoalesced_access": _to_whole_sectors,
    "warp_stall_memory": _to_the_peak,
    "warp_stall_sync": _to_the_peak,
    "occupancy_limited": _to_the_peak,
    "occupancy_limited_by_registers": _to_the_peak,
    "occupancy_limited_by_shared_memory": _to_the_peak,
    "occupancy_limited_by_block_size": _to_the_peak,
    "low_warp_scheduler_utilization": _to_the_peak,
    "low_issue_efficiency": _to_the_peak,
}
