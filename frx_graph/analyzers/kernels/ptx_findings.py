"""Find what a reader should know about a PTX kernel: ten kinds of observations, each with a severity.

These are observations. `ptx_analysis` turns them into labels, with scores and advice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from frx_graph.evidence.ptx.instruction import Kind
from frx_graph.evidence.ptx.module import Function
from frx_graph.evidence.ptx.ptxas import Assembled

VERY_MANY, MANY = 64, 48
"""Registers a thread."""
VIRTUAL_PER_PHYSICAL = 6.375
"""Virtual registers for one physical register: the median of 339 real kernels."""
GLOBAL_SHARE = 0.3
BRANCH_SHARE = 0.15
FEW_INSTRUCTIONS = 20
"""Instructions below which a kernel is too short for meaningful shares."""

Severity = Literal["high", "medium", "low"]


class FindingKind(StrEnum):
    """Kind of an observation."""

    SPILLS = "register_spills_detected"
    VERY_MANY_REGISTERS = "very_high_register_count"
    MANY_REGISTERS = "high_register_count"
    FP64 = "fp64_detected"
    GLOBAL_MEMORY = "high_global_memory_ratio"
    BRANCHES = "high_branch_count"
    SPECIAL_FUNCTIONS = "special_function_ops"
    NO_SHARED_MEMORY = "no_shared_memory_usage"
    TENSOR = "tensor_ops_detected"
    ATOMICS = "atomics_detected"


@dataclass(frozen=True, slots=True)
class PtxFinding:
    """One observation in one kernel."""

    kind: FindingKind
    severity: Severity
    kernel: str
    evidence: str


def find_in_kernel(kernel: Function, assembled: Assembled | None) -> tuple[PtxFinding, ...]:
    """Return the observations in a kernel, the gravest first; `assembled` is None if no assembler has run."""
    found = (*_find_registers(kernel, assembled), *_find_instructions(kernel))
    order = ("high", "medium", "low")
    ranked = sorted(found, key=lambda one: order.index(one[1]))
    return tuple(PtxFinding(kind, severity, kernel.name, evidence) for kind, severity, evidence in ranked)


_Found = tuple[FindingKind, Severity, str]


def _find_registers(kernel: Function, assembled: Assembled | None) -> Iterator[_Found]:
    if assembled is not None and assembled.spills:
        stores, loads = assembled.spill_store_bytes, assembled.spill_load_bytes
        yield FindingKind.SPILLS, "high", f"{stores} bytes of spill stores and {loads} of loads a thread (ptxas)"
    if assembled is None:
        count, said = kernel.virtual_registers / VIRTUAL_PER_PHYSICAL, f"{kernel.virtual_registers} virtual registers"
    else:
        count, said = assembled.registers, f"{assembled.registers} registers a thread (ptxas)"
    if count >= VERY_MANY:
        yield FindingKind.VERY_MANY_REGISTERS, "high" if assembled else "medium", said
    elif count >= MANY:
        yield FindingKind.MANY_REGISTERS, "medium" if assembled else "low", said


def _find_instructions(kernel: Function) -> Iterator[_Found]:
    mix, whole = kernel.mix, kernel.instructions
    if fp64 := mix.get(Kind.FP64, 0) - kernel.reductions:
        yield FindingKind.FP64, "medium", f"{fp64} of {whole} instructions compute in double precision"
    through = mix.get(Kind.GLOBAL_LOAD, 0) + mix.get(Kind.GLOBAL_STORE, 0)
    if whole >= FEW_INSTRUCTIONS and through > GLOBAL_SHARE * whole:
        yield FindingKind.GLOBAL_MEMORY, "medium", f"{through} of {whole} instructions access global memory"
    if whole >= FEW_INSTRUCTIONS and kernel.branches > BRANCH_SHARE * whole:
        yield FindingKind.BRANCHES, "medium", f"{kernel.branches} of {whole} instructions are conditional branches"
    for kind, instructions in (
        (FindingKind.SPECIAL_FUNCTIONS, Kind.SFU),
        (FindingKind.TENSOR, Kind.TENSOR),
        (FindingKind.ATOMICS, Kind.ATOMIC),
    ):
        if count := mix.get(instructions, 0):
            yield kind, "low", f"{count} of {whole} instructions"
    if not (mix.get(Kind.SHARED_LOAD, 0) or mix.get(Kind.SHARED_STORE, 0)):
        yield FindingKind.NO_SHARED_MEMORY, "low", "no instruction reads or writes shared memory"
