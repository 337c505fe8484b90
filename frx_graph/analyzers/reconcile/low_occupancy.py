"""Diagnose too few resident warps to hide latency, because of the grid, the block, or shared memory.

- Source, for: the launch leaves half a multiprocessor, or a part of each warp, empty (certain); odd blocks, much shared
  memory (hints).
- Counters, for: occupancy below 50 % in a kernel limited by latency (measured); few warps are ready, if another layer
  gives the cause.
- Counters, against: occupancy is high, or does not matter (measured).
- Profiler, for: each launch has one block, or blocks of half a warp (certain).

`register_pressure_and_spills` covers limits by registers.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.kernels.analysis import LabelledKernel
from frx_graph.analyzers.kernels.labels import OCCUPANCY_PCT
from frx_graph.analyzers.kernels.occupancy_model import WARP
from frx_graph.analyzers.kernels.speed_of_light import Bound, judge_speed_of_light
from frx_graph.analyzers.reconcile.matched_kernels import RunKernel, SourceKernel
from frx_graph.analyzers.reconcile.signal import DiagnosisRule, Grade, Layer, Signal, Weight, signal_counter
from frx_graph.evidence.ncu.presets import Preset


def _inspect_counters(kernel: LabelledKernel, _source: SourceKernel | None) -> Iterator[Signal]:
    values = kernel.summary.values
    achieved, bound = values.get("achieved_occupancy"), judge_speed_of_light(values, kernel.summary.rules).bound
    if achieved is None:
        return
    said = f"achieved occupancy {achieved:.1f} %"
    if achieved >= OCCUPANCY_PCT:
        yield signal_counter("achieved_occupancy", said, supports=False)
    elif bound not in (Bound.LATENCY, Bound.UNKNOWN):
        yield signal_counter("achieved_occupancy", f"{said}, which is enough: the verdict is {bound}", supports=False)


def _inspect_run(run: RunKernel) -> Iterator[Signal]:
    if run.most_blocks == 1:
        said = "every launch is of a single block, on one multiprocessor of the device"
        yield Signal(Layer.PROFILER, "single_block", True, Grade.CERTAIN, said)
    if run.most_threads is not None and 2 * run.most_threads <= WARP:
        said = f"blocks of {run.most_threads} threads at most leave half of their warp without work"
        yield Signal(Layer.PROFILER, "small_block", True, Grade.CERTAIN, said)


DIAGNOSIS = DiagnosisRule(
    name="low_occupancy",
    title="Too few warps at work",
    told_by=frozenset({Layer.SOURCE, Layer.NCU, Layer.PROFILER}),
    decides=Preset(
        "occupancy",
        "how many warps are at work, and what keeps others away",
        (
            "compute_throughput",
            "memory_throughput",
            "achieved_occupancy",
            "theoretical_occupancy",
            "block_limit_registers",
            "block_limit_shared_memory",
            "block_limit_warps",
            "block_limit_blocks",
        ),
    ),
    findings={
        "low_theoretical_occupancy": Weight(Grade.CERTAIN),
        "poor_block_size_subwarp": Weight(Grade.CERTAIN),
        "poor_block_size_unaligned": Weight(Grade.HINT),
        "large_static_shared_memory": Weight(Grade.HINT),
    },
    labels={
        "occupancy_limited": Weight(Grade.MEASURED),
        "occupancy_limited_by_shared_memory": Weight(Grade.MEASURED),
        "occupancy_limited_by_block_size": Weight(Grade.MEASURED),
        "low_warp_scheduler_utilization": Weight(Grade.MEASURED, alone=False),
    },
    inspect_counters=_inspect_counters,
    inspect_run=_inspect_run,
)
