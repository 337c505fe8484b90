"""What labels are called where people read them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

LABEL_TITLES: Mapping[str, str] = MappingProxyType(
    {
        "memory_bandwidth_bound": "Memory bandwidth saturated",
        "warp_stall_memory": "Warps wait for memory",
        "warp_stall_sync": "Warps wait for each other",
        "l1_cache_thrashing": "L1 cache thrashing",
        "l2_cache_thrashing": "L2 cache thrashing",
        "uncoalesced_access": "Uncoalesced global loads",
        "tensor_core_underutilized": "Tensor cores under-utilized",
        "occupancy_limited": "Occupancy limited by the grid",
        "occupancy_limited_by_registers": "Occupancy limited by registers",
        "occupancy_limited_by_shared_memory": "Occupancy limited by shared memory",
        "occupancy_limited_by_block_size": "Occupancy limited by the block's size",
        "low_warp_scheduler_utilization": "Too few warps ready to issue",
        "low_issue_efficiency": "Issue slots idle",
        "insufficient_ncu_data": "Too few metrics to tell",
        "ptx_register_spills": "Registers spill to local memory",
        "ptx_register_pressure": "Register pressure",
        "ptx_global_memory_heavy": "Many global memory instructions",
        "ptx_fp64_usage": "Double precision arithmetic",
        "ptx_branch_divergence_risk": "Branches that may diverge",
        "input_bound": "Waiting for input",
        "copy_bound": "Copying from the host",
        "sync_bound": "Waiting for devices",
        "communication_bound": "Waiting for communication",
        "launch_bound": "Launching small kernels",
        "layout_churn": "Converting layouts",
        "memory_pressure": "Memory nearly full",
        "shape_instability": "Shapes that change",
        "underutilized_gpu": "Devices mostly idle",
        "insufficient_telemetry": "Too little was recorded",
    }
)


def label_title(label: str) -> str:
    """The label itself where it has no title."""
    return LABEL_TITLES.get(label, label)
