"""Judge a kernel by its use of the compute and memory peaks, and by its warps' stalls.

As in Nsight Compute's rule `SOLBottleneck`, the limit is latency if both are below 60 %, and both if they are within
ten points. Otherwise it is the higher one. The memory figure shows the busiest part of the memory system, which need
not be DRAM. If the figures are not in the file, but the result of that rule is, its verdict counts.

Stalls are shares, or parts of a sum of cycles or samples; see
https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#warp-scheduler-states
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frx_graph.evidence.ncu.launch import NcuRule

MEMORY = frozenset({"long_scoreboard", "lg_throttle", "tex_throttle", "drain"})
"""Global, local, surface and texture memory. Waits for shared memory are separate: they need other fixes."""
SYNCHRONISATION = frozenset({"barrier", "membar", "sleeping"})
"""All but `wait`, the fixed latency of an earlier instruction, which other warps cannot affect."""
NO_STALL = frozenset({"selected", "not_selected"})
"""A warp that issues, and one that could have issued."""


@dataclass(frozen=True, slots=True)
class WarpStalls:
    """Reasons for stalls. `shares` are fractions of the time that warps are resident, by reason, the largest first."""

    shares: Mapping[str, float]

    @property
    def dominant(self) -> str | None:
        """Return the reason for most waiting; None if nothing waits."""
        return next((reason for reason, share in self.shares.items() if reason not in NO_STALL and share > 0), None)

    def sum_shares(self, reasons: frozenset[str]) -> float:
        """Return the combined fraction of these reasons."""
        return sum(share for reason, share in self.shares.items() if reason in reasons)


def compute_warp_stalls(values: Mapping[str, float]) -> WarpStalls | None:
    """Return the stalls; None if some or all were not measured."""
    shares = {reason: value / 100.0 for reason, value in _select_reasons(values, "stall_share").items()}
    if not shares:
        counted = _select_reasons(values, "stall_cycles") or _select_reasons(values, "stall_samples")
        total = sum(counted.values())
        if "selected" not in counted or total <= 0:
            return None
        shares = {reason: value / total for reason, value in counted.items()}
    return WarpStalls(dict(sorted(shares.items(), key=lambda item: (-item[1], item[0]))))


def _select_reasons(values: Mapping[str, float], kind: str) -> dict[str, float]:
    return {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{kind}.")}


LATENCY_BELOW_PCT = 60.0
NEAR_PEAK_PCT = 80.0
BALANCED_WITHIN_PCT = 10.0
_PARTS = {"DRAM": "dram_throughput", "L2": "l2_throughput", "L1": "l1_throughput"}
_SAME_PCT = 0.02
"""Exports round to a hundredth."""


class Bound(enum.StrEnum):
    """The limit of a kernel's time."""

    MEMORY = "memory"
    COMPUTE = "compute"
    BALANCED = "balanced"
    LATENCY = "latency"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SpeedOfLight:
    """The verdict. `compute_pct` and `memory_pct` are percent of the peak, None if not measured. `part` is the part of
    the memory system with that figure. `by_rule`: the verdict is that of Nsight Compute's rule in the file."""

    bound: Bound
    compute_pct: float | None
    memory_pct: float | None
    part: str | None
    by_rule: bool = False

    @property
    def near_peak(self) -> bool:
        """Return True if either is at 80 % or more."""
        return max(self.compute_pct or 0.0, self.memory_pct or 0.0) >= NEAR_PEAK_PCT


def judge_speed_of_light(values: Mapping[str, float], rules: Sequence[NcuRule] = ()) -> SpeedOfLight:
    """Judge the measured values of a kernel, in percent of the peak; without enough of them, by `rules`, the results of
    Nsight Compute's own rules."""
    compute = values.get("compute_throughput")
    memory, part = _find_busiest_memory(values)
    bound = _classify_bound(compute, memory)
    by_rule = _find_rule_verdict(rules) if bound is Bound.UNKNOWN else None
    return SpeedOfLight(by_rule or bound, compute, memory, part, by_rule=by_rule is not None)


_RULE = "SOLBottleneck"
_RULE_TEXTS = {
    "memory is more heavily utilized than compute": Bound.MEMORY,
    "compute is more heavily utilized than memory": Bound.COMPUTE,
    "compute and memory are well-balanced": Bound.BALANCED,
    "low compute throughput and memory bandwidth utilization": Bound.LATENCY,
}
"""Verdicts by the rule's text, in lower case. Source: `sections/SpeedOfLight.py` of Nsight Compute."""


def _find_rule_verdict(rules: Sequence[NcuRule]) -> Bound | None:
    """Return the verdict of the rule; None without one, and if launches of the kernel differ."""
    said = [rule.text.lower() for rule in rules if rule.name == _RULE]
    found = {bound for text, bound in _RULE_TEXTS.items() if any(text in one for one in said)}
    return found.pop() if len(found) == 1 else None


def _classify_bound(compute: float | None, memory: float | None) -> Bound:
    if compute is None or memory is None:
        # One alone can be the limit, but a low value proves nothing about the other.
        if compute is not None and compute >= NEAR_PEAK_PCT:
            return Bound.COMPUTE
        return Bound.MEMORY if memory is not None and memory >= NEAR_PEAK_PCT else Bound.UNKNOWN
    if compute < LATENCY_BELOW_PCT and memory < LATENCY_BELOW_PCT:
        return Bound.LATENCY
    if abs(compute - memory) < BALANCED_WITHIN_PCT:
        return Bound.BALANCED
    return Bound.COMPUTE if compute > memory else Bound.MEMORY


def _find_busiest_memory(values: Mapping[str, float]) -> tuple[float | None, str | None]:
    parts = {part: values[name] for part, name in _PARTS.items() if name in values}
    whole = values.get("memory_throughput")
    if whole is not None:
        return whole, next((part for part, pct in parts.items() if abs(pct - whole) <= _SAME_PCT), None)
    # L1's figure covers its active cycles, not all; only those of DRAM and L2 are comparable without scaling.
    parts.pop("L1", None)
    if len(parts) < 2:
        return None, None
    busiest = max(parts, key=lambda part: parts[part])
    return parts[busiest], busiest
