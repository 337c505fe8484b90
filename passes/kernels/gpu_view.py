"""What is known of the GPU that a kernel ran on, and what that adds to the counters: occupancy that its limits allow,
and where on the roofline of its data sheet the kernel lies.

The GPU is the one that somebody names, else the one that the file names, else the architecture of the file's compute
capability, of which limits are known and no peaks. One that is not listed is said to be unknown; another is never taken
in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frx_graph.passes.kernels.kernel_totals import KernelSummary
from frx_graph.passes.kernels.occupancy_limit import FULL_PCT, Limiter
from frx_graph.passes.kernels.occupancy_model import block_limits, theoretical_occupancy_pct
from frx_graph.rules.gpu_profile import GpuProfile, architecture_of_capability, find_gpu

BY_OPTION = "--gpu-model"
BY_NAME = "the file's device name"
BY_CAPABILITY = "the file's compute capability"


@dataclass(frozen=True, slots=True)
class GpuView:
    """One kernel on that GPU. Everything but the first two is None where a metric that it needs was not measured, or a
    number of the GPU is not known. `flops_per_byte` is float32 arithmetic over DRAM traffic; `ridge` the same where the
    float32 peak meets the peak bandwidth; `mfu_pct` and `dram_pct` are percent of these peaks."""

    profile: GpuProfile
    known_by: str
    occupancy_pct: float | None
    limiters: tuple[Limiter, ...]
    flops_per_byte: float | None
    ridge: float | None
    mfu_pct: float | None
    dram_pct: float | None

    @property
    def tells(self) -> bool:
        """Whether anything follows from the GPU."""
        return any(value is not None for value in (self.occupancy_pct, self.mfu_pct, self.dram_pct))

    @property
    def region(self) -> str | None:
        """The roof above the kernel: of its intensity, where arithmetic was counted."""
        if self.flops_per_byte is None or self.ridge is None:
            return None
        return "memory_bound" if self.flops_per_byte < self.ridge else "compute_bound"


def gpu_view(kernel: KernelSummary, given: GpuProfile | None) -> GpuView | None:
    """None where the GPU is not known; `given` is the one that somebody names."""
    known = _profile(kernel, given)
    if known is None:
        return None
    profile, known_by = known
    limits = profile.architecture.limits
    occupancy: float | None = None
    limiters: tuple[Limiter, ...] = ()
    if limits is not None and (needs := _needs(kernel)) is not None:
        occupancy = theoretical_occupancy_pct(limits, *needs)
        if occupancy < FULL_PCT:
            by = block_limits(limits, *needs)
            limiters = tuple(limiter for limiter, blocks in by.items() if blocks == min(by.values()))
    seconds, flops, moved = kernel.seconds, _float32_operations(kernel.values), dram_bytes(kernel.values)
    peak, bandwidth = profile.float32_flops, profile.bandwidth_bytes_per_s
    return GpuView(
        profile=profile,
        known_by=known_by,
        occupancy_pct=occupancy,
        limiters=limiters,
        flops_per_byte=flops / moved if flops and moved else None,
        ridge=peak / bandwidth if peak and bandwidth else None,
        mfu_pct=100.0 * flops / seconds / peak if flops and seconds and peak else None,
        dram_pct=100.0 * moved / seconds / bandwidth if moved and seconds and bandwidth else None,
    )


def _profile(kernel: KernelSummary, given: GpuProfile | None) -> tuple[GpuProfile, str] | None:
    if given is not None:
        return given, BY_OPTION
    if (named := find_gpu(kernel.device_name)) is not None:
        return named, BY_NAME
    architecture = architecture_of_capability(kernel.compute_capability)
    return None if architecture is None else (architecture, BY_CAPABILITY)


def _needs(kernel: KernelSummary) -> tuple[int, int, int] | None:
    """Threads of a block, registers of a thread and shared bytes of a block; None where one of them is not known."""
    names = ("registers_per_thread", "static_shared_memory", "dynamic_shared_memory")
    if kernel.block is None or any(name not in kernel.values for name in names):
        return None
    registers, static, dynamic = (round(kernel.values[name]) for name in names)
    x, y, z = kernel.block
    threads = x * y * z
    return (threads, registers, static + dynamic) if threads > 0 else None


def _float32_operations(values: Mapping[str, float]) -> float | None:
    names = ("fp32_add", "fp32_mul", "fp32_fma")
    if any(name not in values for name in names):
        return None
    add, mul, fma = (values[name] for name in names)
    return add + mul + 2 * fma


def dram_bytes(values: Mapping[str, float]) -> float | None:
    """Bytes read and written, as they were counted; None where they were not."""
    if "dram_bytes" in values:
        return values["dram_bytes"]
    if "dram_bytes_read" in values and "dram_bytes_written" in values:
        return values["dram_bytes_read"] + values["dram_bytes_written"]
    return None
