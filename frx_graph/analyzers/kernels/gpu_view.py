"""Add the GPU's data to a kernel's counters: possible occupancy, arithmetic, and its place on the roofline.

The GPU is the one that the user names, or the one in the file. Otherwise it is the architecture of the file's compute
capability, which has limits and no peaks. An unlisted GPU is reported as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from frx_graph.analyzers.kernels.kernel_totals import KernelSummary
from frx_graph.analyzers.kernels.labels import Estimates, is_matrix_product
from frx_graph.analyzers.kernels.occupancy_model import (
    FULL_PCT,
    WARP,
    Limiter,
    compute_block_limits,
    compute_theoretical_occupancy,
)
from frx_graph.rules.gpu_profile import FLOAT32, GpuProfile, find_architecture_by_capability, find_gpu

_FLOAT32 = ("fp32_add", "fp32_mul", "fp32_fma")
_TENSOR = MappingProxyType(
    {"fp16": "tensor_fp16_operations", "bf16": "tensor_bf16_operations", "tf32": "tensor_tf32_operations"}
)
"""Counters by operand format; all accumulate in float32, as the peaks of data sheets do."""
_BUSY = ("tensor_pipe", "tensor_instructions")


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Operations of all launches by format: `float32`, and the formats of tensor cores. `complete` means that the
    kernel computes nothing else."""

    operations: Mapping[str, float]
    complete: bool

    @property
    def whole(self) -> float | None:
        """Return all operations; None if some were not counted."""
        return sum(self.operations.values()) if self.complete else None


def count_arithmetic(kernel: str, values: Mapping[str, float]) -> Arithmetic | None:
    """Return the counted arithmetic of the named kernel; None if nothing was counted."""
    operations = {of: values[name] for of, name in _TENSOR.items() if values.get(name, 0.0) > 0}
    complete = bool(operations) or not has_other_arithmetic(kernel, values)
    if all(name in values for name in _FLOAT32):
        add, mul, fma = (values[name] for name in _FLOAT32)
        operations[FLOAT32] = add + mul + 2 * fma
    return Arithmetic(operations, complete) if operations else None


def has_other_arithmetic(kernel: str, values: Mapping[str, float]) -> bool:
    """Return True if the kernel may compute more than float32 instructions: by tensor cores, also judged by its name,
    or in double precision."""
    if values.get("fp64_instructions", 0.0) > 0:
        return True
    known = [values[name] for name in _BUSY if name in values]
    return any(value > 0 for value in known) if known else is_matrix_product(kernel, values)


BY_OPTION = "--gpu-model"
BY_NAME = "the file's device name"
BY_CAPABILITY = "the file's compute capability"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView(Estimates):
    """One kernel on that GPU. All fields but the first two are None or empty if a metric was not measured, or the GPU's
    value is unknown.

    `peak_pct` is arithmetic over its format's peak. `mfu_pct` is the part of the time that all arithmetic would
    take at these peaks. `flops_per_byte` is all arithmetic over DRAM traffic, and `ridge` the same ratio if both would
    take equally long. `launch_bytes` is the traffic of a launch.

    `arithmetic_roof_pct` and `dram_roof_pct` are the roofs that shares refer to, in percent of the data sheet's: over
    100 if a kernel was faster than the data sheet, as GPUs with a higher clock are.
    """

    profile: GpuProfile
    known_by: str
    peak_pct: Mapping[str, float]
    mfu_pct: float | None
    flops_per_byte: float | None
    ridge: float | None
    launch_bytes: float | None
    arithmetic_roof_pct: float = 100.0
    dram_roof_pct: float = 100.0

    @property
    def tells(self) -> bool:
        """Return True if the GPU adds anything."""
        return bool(self.peak_pct) or self.occupancy_pct is not None or self.dram_pct is not None

    @property
    def region(self) -> str | None:
        """Return the roofline's limit for the kernel's intensity, if arithmetic was counted."""
        if self.flops_per_byte is None or self.ridge is None:
            return None
        return "memory_bound" if self.flops_per_byte < self.ridge else "compute_bound"


def view_gpu(kernel: KernelSummary, given: GpuProfile | None) -> GpuView | None:
    """Return the GPU's data; None if the GPU is unknown. `given` is the one that the user names."""
    known = _find_profile(kernel, given)
    if known is None:
        return None
    profile, known_by = known
    limits = profile.architecture.limits
    occupancy: float | None = None
    limiters: tuple[Limiter, ...] = ()
    if limits is not None and (needs := _find_block_needs(kernel)) is not None:
        occupancy = compute_theoretical_occupancy(limits, *needs)
        if occupancy < FULL_PCT:
            by = compute_block_limits(limits, *needs)
            limiters = tuple(limiter for limiter, blocks in by.items() if blocks == min(by.values()))
    counted = count_arithmetic(kernel.kernel, kernel.values)
    operations: Mapping[str, float] = {} if counted is None else counted.operations
    flops = None if counted is None else counted.whole
    by_format = {of: done / peak for of, done in operations.items() if (peak := profile.get_peak_flops(of)) is not None}
    at_peak = sum(by_format.values()) if flops is not None and len(by_format) == len(operations) else None
    seconds, moved, bandwidth = kernel.seconds, count_dram_bytes(kernel.values), profile.bandwidth_bytes_per_s
    return GpuView(
        profile=profile,
        known_by=known_by,
        occupancy_pct=occupancy,
        limiters=limiters,
        peak_pct={of: 100.0 * least / seconds for of, least in by_format.items() if least} if seconds else {},
        mfu_pct=100.0 * at_peak / seconds if at_peak and seconds else None,
        flops_per_byte=flops / moved if flops and moved else None,
        ridge=flops / at_peak / bandwidth if flops and at_peak and bandwidth else None,
        dram_pct=100.0 * moved / seconds / bandwidth if moved and seconds and bandwidth else None,
        launch_bytes=None if moved is None else moved / kernel.launches,
        least_waves=_count_least_waves(kernel, profile),
    )


def _count_least_waves(kernel: KernelSummary, profile: GpuProfile) -> float | None:
    """Return how often the grid fills the device at least; None if the grid, or the device's size, is unknown. A known
    architecture without a product is taken for its largest one."""
    limits, product = profile.architecture.limits, profile.product
    listed = (product,) if product is not None else profile.architecture.products
    sms = kernel.values.get("sm_count", max((one.sms for one in listed if one.sms is not None), default=0))
    if kernel.grid is None or kernel.block is None or limits is None or not sms:
        return None
    warps = max(1, -(-math.prod(kernel.block) // WARP))
    blocks = min(limits.threads // WARP // warps, limits.blocks)
    return math.prod(kernel.grid) / (sms * blocks) if blocks else None


def raise_roofs(views: Sequence[GpuView | None]) -> tuple[GpuView | None, ...]:
    """Return the views with shares of roofs that no kernel on the same GPU is above."""
    known = [view for view in views if view is not None]
    arithmetic: dict[str, float] = {}
    dram: dict[str, float] = {}
    for view in known:
        name = view.profile.name
        arithmetic[name] = max(arithmetic.get(name, 100.0), view.mfu_pct or 0.0, *view.peak_pct.values())
        dram[name] = max(dram.get(name, 100.0), view.dram_pct or 0.0)
    return tuple(
        None if view is None else _rescale_view(view, arithmetic[view.profile.name], dram[view.profile.name])
        for view in views
    )


def _rescale_view(view: GpuView, arithmetic: float, dram: float) -> GpuView:
    """Return the view of shares of these roofs, which are in percent of the data sheet's."""
    return replace(
        view,
        peak_pct={of: 100.0 * (pct / arithmetic) for of, pct in view.peak_pct.items()},
        mfu_pct=None if view.mfu_pct is None else 100.0 * (view.mfu_pct / arithmetic),
        ridge=None if view.ridge is None else view.ridge * (arithmetic / dram),
        dram_pct=None if view.dram_pct is None else 100.0 * (view.dram_pct / dram),
        arithmetic_roof_pct=arithmetic,
        dram_roof_pct=dram,
    )


def _find_profile(kernel: KernelSummary, given: GpuProfile | None) -> tuple[GpuProfile, str] | None:
    if given is not None:
        return given, BY_OPTION
    if (named := find_gpu(kernel.device_name)) is not None:
        return named, BY_NAME
    architecture = find_architecture_by_capability(kernel.compute_capability)
    return None if architecture is None else (architecture, BY_CAPABILITY)


def _find_block_needs(kernel: KernelSummary) -> tuple[int, int, int] | None:
    """Return a block's threads, a thread's registers, and a block's shared bytes; None if one is unknown."""
    names = ("registers_per_thread", "static_shared_memory", "dynamic_shared_memory")
    if kernel.block is None or any(name not in kernel.values for name in names):
        return None
    registers, static, dynamic = (round(kernel.values[name]) for name in names)
    x, y, z = kernel.block
    threads = x * y * z
    return (threads, registers, static + dynamic) if threads > 0 else None


def count_dram_bytes(values: Mapping[str, float]) -> float | None:
    """Return the counted bytes read and written; None without a count."""
    if "dram_bytes" in values:
        return values["dram_bytes"]
    if "dram_bytes_read" in values and "dram_bytes_written" in values:
        return values["dram_bytes_read"] + values["dram_bytes_written"]
    return None
