"""Diagnose warps that wait at barriers for the others of their block.

- Source, for: a barrier in a loop with next to no work, or one that nothing depends on (certain).
- Source, against: no barrier, and no call that may have one (certain).
- PTX, against: the compiled kernel has no barrier (certain).
- Counters, for: barriers are the largest stall (measured).
- Counters, against: warps hardly wait for others (measured).

Waits of the host for the device do not count here.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.kernels.analysis import LabelledKernel
from frx_graph.analyzers.kernels.ptx_analysis import StaticKernel
from frx_graph.analyzers.kernels.speed_of_light import SYNCHRONISATION, compute_warp_stalls
from frx_graph.analyzers.reconcile.matched_kernels import SourceKernel
from frx_graph.analyzers.reconcile.signal import DiagnosisRule, Grade, Layer, Signal, Weight, signal_counter
from frx_graph.evidence.ncu.presets import Preset

LITTLE = 0.05
"""Share of the warps' resident time: a quarter of the label's threshold."""


def _inspect_source(source: SourceKernel) -> Iterator[Signal]:
    kernel = source.kernel
    if kernel is None or not kernel.complete or kernel.barriers or any(not call.pure for call in kernel.calls):
        return
    yield Signal(Layer.SOURCE, "no_barrier", False, Grade.CERTAIN, "the kernel has no barrier")


def _inspect_ptx(kernel: StaticKernel) -> Iterator[Signal]:
    function = kernel.function
    if not function.calls and not {"barriers", "mbarrier"} & function.capabilities:
        yield Signal(Layer.PTX, "no_barrier", False, Grade.CERTAIN, "the compiled kernel has no barrier")


def _inspect_counters(kernel: LabelledKernel, _source: SourceKernel | None) -> Iterator[Signal]:
    stalls = compute_warp_stalls(kernel.summary.values)
    if stalls is not None and (share := stalls.sum_shares(SYNCHRONISATION)) < LITTLE:
        yield signal_counter("warp_stalls", f"warps wait for others {share:.1%} of the time", supports=False)


DIAGNOSIS = DiagnosisRule(
    name="synchronization_overhead",
    title="Warps wait at barriers",
    told_by=frozenset({Layer.SOURCE, Layer.NCU}),
    decides=Preset("stalls", "what warps wait for", ("compute_throughput", "memory_throughput"), stalls=True),
    findings=dict.fromkeys(("sync_inside_tight_loop", "unnecessary_syncthreads"), Weight(Grade.CERTAIN)),
    labels={"warp_stall_sync": Weight(Grade.MEASURED)},
    inspect_source=_inspect_source,
    inspect_ptx=_inspect_ptx,
    inspect_counters=_inspect_counters,
)
