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

from collections.abc import Iterator, Mapping

from frx_graph.analyzers.kernels.analysis import LabelledKernel
from frx_graph.analyzers.kernels.occupancy_model import FULL_PCT, Limiter, find_limiters
from frx_graph.analyzers.kernels.ptx_analysis import MANY_REGISTERS, StaticKernel
from frx_graph.analyzers.reconcile.matched_kernels import SourceKernel
from frx_graph.analyzers.reconcile.signal import DiagnosisRule, Grade, Layer, Signal, Weight, signal_counter
from frx_graph.evidence.ncu.presets import Preset

REGISTERS, LOCAL_MEMORY = "registers", "local memory"
_LIMITED = "occupancy_limited_by_registers"
MUCH = 0.1
"""Share of local sectors among those of global and local memory: a tenth, as Nsight Compute draws the line for bank
conflicts. Fixing less gains little."""


def _inspect_ptx(kernel: StaticKernel) -> Iterator[Signal]:
    assembled = kernel.assembled
    for label in kernel.labels:
        if label.label == "ptx_register_pressure":
            grade = Grade.HINT if assembled is None else Grade.CERTAIN
            yield Signal(Layer.PTX, label.label, True, grade, label.evidence, REGISTERS)
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


def _inspect_counters(kernel: LabelledKernel, _source: SourceKernel | None) -> Iterator[Signal]:
    values = kernel.summary.values
    if all(label.label != _LIMITED for label in kernel.labels):
        by = find_limiters(values)
        if values.get("theoretical_occupancy", 0.0) >= FULL_PCT:
            yield signal_counter("theoretical_occupancy", "every warp finds place", supports=False, about=REGISTERS)
        elif by and Limiter.REGISTERS not in by:
            said = f"{' and '.join(by)} allow fewer blocks than registers do"
            yield signal_counter("block_limit_registers", said, supports=False, about=REGISTERS)
    yield from _inspect_local_memory(values)


def _inspect_local_memory(values: Mapping[str, float]) -> Iterator[Signal]:
    loads, stores = values.get("local_load_sectors"), values.get("local_store_sectors")
    local = (loads or 0.0) + (stores or 0.0)
    if not local:
        if loads is not None and stores is not None:
            yield signal_counter("local_sectors", "no sector of local memory moves", supports=False, about=LOCAL_MEMORY)
        return
    said = f"{local:,.0f} sectors of local memory move"
    if "load_sectors" not in values or "store_sectors" not in values:
        yield signal_counter("local_sectors", said, supports=True, about=LOCAL_MEMORY, alone=False)
        return
    share = local / (local + values["load_sectors"] + values["store_sectors"])
    said += f", {share:.0%} of those of local and global memory"
    yield Signal(Layer.NCU, "local_sectors", True, Grade.MEASURED if share >= MUCH else Grade.HINT, said, LOCAL_MEMORY)


DIAGNOSIS = DiagnosisRule(
    name="register_pressure_and_spills",
    title="Registers are short, or spill",
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
    findings={"high_register_pressure": Weight(Grade.CERTAIN, LOCAL_MEMORY)},
    labels={
        "ptx_register_spills": Weight(Grade.COUNTED, LOCAL_MEMORY),
        _LIMITED: Weight(Grade.MEASURED, REGISTERS),
    },
    inspect_ptx=_inspect_ptx,
    inspect_counters=_inspect_counters,
)
