"""What warps wait for: each reason's share of the time that they are resident.

Nsight Compute gives that as a share, as cycles an instruction, or as samples; the first is taken as it is, of the
others each reason's part of the sum. The reasons are explained in
https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#warp-scheduler-states
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MEMORY = frozenset({"long_scoreboard", "lg_throttle", "tex_throttle", "drain"})
"""Global, local, surface and texture memory. What waits for shared memory is not in there: other fixes help."""
SYNCHRONISATION = frozenset({"barrier", "membar", "sleeping"})
"""Not `wait`: that is the fixed latency of an instruction before, and no other warp has anything to do with it."""
NO_STALL = frozenset({"selected", "not_selected"})
"""A warp that issues, and one that could have."""


@dataclass(frozen=True, slots=True)
class WarpStalls:
    """`shares` are fractions of the time that warps are resident, by reason, the largest first."""

    shares: Mapping[str, float]

    @property
    def dominant(self) -> str | None:
        """The reason of most of the waiting; None where nothing waits."""
        return next((reason for reason, share in self.shares.items() if reason not in NO_STALL and share > 0), None)

    def of(self, reasons: frozenset[str]) -> float:
        """The fraction that these reasons have together."""
        return sum(share for reason, share in self.shares.items() if reason in reasons)


def warp_stalls(values: Mapping[str, float]) -> WarpStalls | None:
    """None where no stall was measured, and where only some were: a part of a sum tells no share."""
    shares = {reason: value / 100.0 for reason, value in _reasons(values, "stall_share").items()}
    if not shares:
        counted = _reasons(values, "stall_cycles") or _reasons(values, "stall_samples")
        total = sum(counted.values())
        if "selected" not in counted or total <= 0:
            return None
        shares = {reason: value / total for reason, value in counted.items()}
    return WarpStalls(dict(sorted(shares.items(), key=lambda item: (-item[1], item[0]))))


def _reasons(values: Mapping[str, float], kind: str) -> dict[str, float]:
    return {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{kind}.")}
