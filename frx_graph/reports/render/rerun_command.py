"""The command that measures again what a result is told by."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

YOUR_PROGRAM = ("./your_app",)
_PRESETS = {
    "memory_bandwidth_bound": "memory",
    "l1_cache_thrashing": "memory",
    "l2_cache_thrashing": "memory",
    "uncoalesced_access": "memory",
    "tensor_core_underutilized": "tensor",
    "warp_stall_memory": "stalls",
    "warp_stall_sync": "stalls",
    "low_warp_scheduler_utilization": "stalls",
    "low_issue_efficiency": "stalls",
    "occupancy_limited": "occupancy",
    "occupancy_limited_by_registers": "occupancy",
    "occupancy_limited_by_shared_memory": "occupancy",
    "occupancy_limited_by_block_size": "occupancy",
}


def rerun_command(label: str | None, measured: Sequence[str] = ("--", *YOUR_PROGRAM)) -> str:
    """The command for the primary bottleneck `label`; `measured` are the filters that the program was measured with,
    `--`, and the program."""
    return shlex.join(("frx", "profile", "--preset", _PRESETS.get(label or "", "full"), *measured))
