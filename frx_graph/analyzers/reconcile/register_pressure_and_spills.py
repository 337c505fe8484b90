"""Diagnose a thread with too few registers, so that values go to memory, or with so many that few warps fit.

- Source, for: a thread's arrays are larger than its registers (certain).
- PTX, for: ptxas counts spills (counted), or 64 registers (certain); many virtual ones (hint).
- PTX, against: ptxas counts no local memory and fewer registers (counted).
- Counters, for: registers limit the occupancy; local memory is used (measured).
- Counters, against: neither (measured).

Registers and local memory are separate sides: a kernel may spill at 32 registers. A frame in local memory is not a
spill; arrays in the source look the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.kernels.analysis import LabelledKernel
from frx_graph.analyzers.kernels.occupancy_model import FULL_PCT, Limiter, find_limiters
from frx_graph.analyzers.kernels.ptx_analysis import MANY_REGISTERS, StaticKernel
from frx_graph.analyzers.reconcile.matched_kernels import MatchedKernel
from frx_graph.analyzers.reconcile.signal import (
    DiagnosisRule,
    Grade,
    Layer,
    Signal,
    signal_counter,
    signal_label,
    signal_source_findings,
)
from frx_graph.evidence.ncu.presets import Preset

REGISTERS, LOCAL_MEMORY = "registers", "local memory"
MUCH = 0.1
"""Share of local sectors among those of global and local memory: a tenth, as Nsight Compute draws the line for bank
conflicts. Fixing less gains little."""


def collect_signals(kernel: MatchedKernel) -> Iterator[Signal]:
    """Yield the signals of each layer."""
    yield from signal_source_findings(kernel.source, {"high_register_pressure": Grade.CERTAIN}, LOCAL_MEMORY)
    for static in kernel.ptx:
        yield from _inspect_ptx(static)
    for labelled in kernel.ncu:
        yield from _inspect_registers(labelled)
        yield from _inspect_local_memory(labelled)


def _inspect_ptx(kernel: StaticKernel) -> Iterator[Signal]:
    assembled = kernel.assembled
    for label in kernel.labels:
        if label.label == "ptx_register_spills":
            yield signal_label(Layer.PTX, label, Grade.COUNTED, LOCAL_MEMORY)
        elif label.label == "ptx_register_pressure":
            grade = Grade.HINT if assembled is None else Grade.CERTAIN
            yield signal_label(Layer.PTX, label, grade, REGISTERS)
    if assembled is None:
        return
    if assembled.registers < MANY_REGISTERS:
        said = f"{assembled.registers} registers a thread (ptxas)"
        yield Signal(Layer.PTX, "registers", False, Grade.COUNTED, said, REGISTERS)
    if not assembled.stack_bytes and not assembled.spills:
        yield Signal(Layer.PTX, "stack", False, Grade.COUNTED, "no local memory (ptxas)", LOCAL_MEMORY)
    elif not assembled.spills:
        said = f"a frame of {assembled.stack_bytes} bytes a thread in local memory, without spills (ptxas)"
        yield Signal(Layer.PTX, "stack", True, Grade.CERTAIN, said, LOCAL_MEMORY, alone=False)


def _inspect_registers(kernel: LabelledKernel) -> Iterator[Signal]:
    values = kernel.summary.values
    label = next((one for one in kernel.labels if one.label == "occupancy_limited_by_registers"), None)
    if label is not None:
        yield signal_label(Layer.NCU, label, Grade.MEASURED, REGISTERS)
        return
    by = find_limiters(values)
    if values.get("theoretical_occupancy", 0.0) >= FULL_PCT:
        yield signal_counter("theoretical_occupancy", "every warp finds place", supports=False, about=REGISTERS)
    elif by and Limiter.REGISTERS not in by:
        said = f"{' and '.join(by)} allow fewer blocks than registers do"
        yield signal_counter("block_limit_registers", said, supports=False, about=REGISTERS)


def _inspect_local_memory(kernel: LabelledKernel) -> Iterator[Signal]:
    values = kernel.summary.values
    sectors = [values.get("local_load_sectors"), values.get("local_store_sectors")]
    known = [one for one in sectors if one is not None]
    local = sum(known)
    if not local:
        if len(known) == len(sectors):
            yield signal_counter("local_sectors", "no sector of local memory moves", supports=False, about=LOCAL_MEMORY)
        return
    whole = [values.get("load_sectors"), values.get("store_sectors")]
    said = f"{local:,.0f} sectors of local memory move"
    share = local / (local + sum(one for one in whole if one is not None)) if None not in whole else None
    if share is not None:
        said += f", {share:.0%} of those of local and global memory"
    if share is None or share >= MUCH:
        yield signal_counter("local_sectors", said, supports=True, about=LOCAL_MEMORY, alone=share is not None)
    else:
        yield Signal(Layer.NCU, "local_sectors", True, Grade.HINT, said, LOCAL_MEMORY)


DIAGNOSIS = DiagnosisRule(
    name="register_pressure_and_spills",
    title="Registers are short, or spill",
    signals=collect_signals,
    told_by=frozenset({Layer.SOURCE, Layer.PTX, Layer.NCU}),
    decides=Preset(
        "registers",
        "whether registers limit the occupancy, and what goes to local memory",
        (
            "compute_throughput",
            "memory_throughput",
            "registers_per_thread",
            "block_limit_registers",
            "block_limit_shared_memory",
            "block_limit_warps",
            "block_limit_blocks",
            "achieved_occupancy",
            "theoretical_occupancy",
            "local_load_sectors",
            "local_store_sectors",
            "load_sectors",
            "store_sectors",
        ),
    ),
)
