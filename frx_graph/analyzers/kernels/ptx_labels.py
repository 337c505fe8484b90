"""What a kernel's PTX, and the assembler, say of it before it has run.

Registers and spills are the assembler's to tell. Without it virtual registers are all that is known, of which a kernel
may have hundreds and need sixteen; nothing is called a spill then, and what they hint at has little confidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from frx_graph.evidence.ptx.instruction import Kind
from frx_graph.evidence.ptx.module import Function
from frx_graph.evidence.ptx.ptxas import Assembled

MOST_REGISTERS = 255
"""That a thread can have, from compute capability 3.5 on."""
MANY_REGISTERS = 64
"""With which half of the threads of a multiprocessor of 2,048 fit beside its 65,536 registers."""
MANY_VIRTUAL = 408
"""As many for 64 physical ones as 339 real kernels had in the median: 102 for 16."""
GLOBAL_SHARE = 0.3
BRANCH_SHARE = 0.15
_FEW = 20
"""Instructions of a kernel that is too short for shares to say anything."""
_GLOBAL = (Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE)
_MEASURED, _STATIC, _GUESSED = 0.95, 0.6, 0.2


@dataclass(frozen=True, slots=True)
class PtxLabel:
    """One risk of one kernel; `score` and `confidence` are 0..1."""

    label: str
    score: float
    confidence: float
    evidence: str


def ptx_labels(kernel: Function, assembled: Assembled | None) -> tuple[PtxLabel, ...]:
    """The labels of a kernel, the highest score first; `assembled` is None where no assembler has seen it."""
    found = [label for rule in _RULES for label in rule(kernel, assembled)]
    return tuple(sorted(found, key=lambda label: (-label.score, label.label)))


def _register_spills(_kernel: Function, assembled: Assembled | None) -> Iterator[PtxLabel]:
    if assembled is None or not assembled.spills:
        return
    stores, loads = assembled.spill_store_bytes, assembled.spill_load_bytes
    said = f"{stores} bytes of spill stores and {loads} of loads a thread, at {assembled.registers} registers (ptxas)"
    yield PtxLabel("ptx_register_spills", min(1.0, 0.5 + stores / 512.0), _MEASURED, said)


def _register_pressure(kernel: Function, assembled: Assembled | None) -> Iterator[PtxLabel]:
    if assembled is not None:
        if assembled.registers >= MANY_REGISTERS:
            score = 0.7 * assembled.registers / MOST_REGISTERS
            said = f"{assembled.registers} registers a thread (ptxas)"
            yield PtxLabel("ptx_register_pressure", score, _MEASURED, said)
    elif kernel.virtual_registers >= MANY_VIRTUAL:
        said = (
            f"{kernel.virtual_registers} virtual registers: virtual only, low confidence; ptxas knows how many it needs"
        )
        yield PtxLabel("ptx_register_pressure", 0.2, _GUESSED, said)


def _global_memory_heavy(kernel: Function, _assembled: Assembled | None) -> Iterator[PtxLabel]:
    share = _share(kernel, *_GLOBAL)
    if share > GLOBAL_SHARE:
        said = f"{share:.0%} of {kernel.instructions} instructions read or write global memory"
        yield PtxLabel("ptx_global_memory_heavy", min(1.0, share), _STATIC, said)


def _fp64_usage(kernel: Function, _assembled: Assembled | None) -> Iterator[PtxLabel]:
    count = kernel.mix.get(Kind.FP64, 0)
    if count:
        share = count / kernel.instructions
        said = f"{count} of {kernel.instructions} instructions compute in double precision"
        yield PtxLabel("ptx_fp64_usage", min(1.0, 0.3 + share), _STATIC, said)


def _branch_divergence_risk(kernel: Function, _assembled: Assembled | None) -> Iterator[PtxLabel]:
    if kernel.instructions < _FEW:
        return
    share = kernel.branches / kernel.instructions
    if share > BRANCH_SHARE:
        said = f"{kernel.branches} of {kernel.instructions} instructions are branches on a predicate"
        yield PtxLabel("ptx_branch_divergence_risk", min(1.0, 2 * share), _GUESSED, said)


def _share(kernel: Function, *kinds: Kind) -> float:
    if kernel.instructions < _FEW:
        return 0.0
    return sum(kernel.mix.get(kind, 0) for kind in kinds) / kernel.instructions


_RULES: tuple[Callable[[Function, Assembled | None], Iterator[PtxLabel]], ...] = (
    _register_spills,
    _register_pressure,
    _global_memory_heavy,
    _fp64_usage,
    _branch_divergence_risk,
)
