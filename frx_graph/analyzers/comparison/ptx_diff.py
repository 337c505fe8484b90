"""What changed from one PTX file to another. Registers and spills are told by the assembler, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frx_graph.analyzers.comparison.finding_changes import FindingChange, Found, KnownKernel, finding_changes
from frx_graph.analyzers.comparison.matching import Change, MatchedBy, Pair, match_kernels
from frx_graph.analyzers.kernels.ptx_analysis import StaticKernel
from frx_graph.analyzers.layers import PtxLayer
from frx_graph.evidence.ptx.instruction import Kind

SURE = 0.5
"""Confidence from which a label counts: what virtual registers and the number of branches hint at has 0.2."""
_WHAT_IT_IS = frozenset({"ptx_global_memory_heavy"})
"""Says what a kernel is made of: who computes the same with fewer other instructions has a larger share of these."""


@dataclass(frozen=True, slots=True)
class PtxKernelDiff:
    """Two versions of a kernel; `changes` and `mix` have what is equal, too. `assembled`: registers and spills of both
    are the assembler's; else only virtual registers are known of both, and nothing is said of spills."""

    kernel_a: str
    kernel_b: str
    matched_by: MatchedBy
    assembled: bool
    changes: tuple[Change, ...]
    mix: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class PtxDiff:
    """Two files; their targets are those that they name."""

    target_a: str
    target_b: str
    kernels: tuple[PtxKernelDiff, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    findings: tuple[FindingChange, ...]


def ptx_diff(a: PtxLayer, b: PtxLayer) -> PtxDiff:
    """What differs between them, kernels in an order that is the same from either side."""
    matching = match_kernels(a.analysis.kernels, b.analysis.kernels, lambda kernel: kernel.function.name)
    known = matching.map(lambda kernel: KnownKernel(kernel.function.name))
    return PtxDiff(
        target_a=a.module.target,
        target_b=b.module.target,
        kernels=tuple(sorted(map(_kernel_diff, matching.pairs), key=lambda one: sorted((one.kernel_a, one.kernel_b)))),
        only_a=tuple(kernel.name for kernel in known.only_a),
        only_b=tuple(kernel.name for kernel in known.only_b),
        findings=finding_changes("ptx", known, _found(a), _found(b)),
    )


def _found(layer: PtxLayer) -> tuple[Found, ...]:
    return tuple(
        Found(
            label.label, KnownKernel(kernel.function.name), label.confidence >= SURE and label.label not in _WHAT_IT_IS
        )
        for kernel in layer.analysis.kernels
        for label in kernel.labels
    )


def _kernel_diff(pair: Pair[StaticKernel]) -> PtxKernelDiff:
    ours, theirs = _numbers(pair.a), _numbers(pair.b)
    mix_a, mix_b = pair.a.function.mix, pair.b.function.mix
    return PtxKernelDiff(
        kernel_a=pair.a.function.name,
        kernel_b=pair.b.function.name,
        matched_by=pair.by,
        assembled=pair.a.assembled is not None and pair.b.assembled is not None,
        changes=tuple(Change(name, title, unit, ours[name], theirs[name]) for name, title, unit in _NUMBERS),
        mix=tuple(
            Change(kind.value, kind.value, "", mix_a.get(kind, 0), mix_b.get(kind, 0))
            for kind in Kind
            if kind in mix_a or kind in mix_b
        ),
    )


_NUMBERS = (
    ("registers", "Registers a thread (ptxas)", ""),
    ("register_occupancy", "Occupancy that registers allow", "%"),
    ("spill_stores", "Spill stores a thread (ptxas)", "byte"),
    ("spill_loads", "Spill loads a thread (ptxas)", "byte"),
    ("virtual_registers", "Virtual registers (low confidence)", ""),
    ("shared_bytes", "Declared shared memory", "byte"),
    ("instructions", "Instructions", ""),
    ("branches", "Branches on a predicate", ""),
)


def _numbers(kernel: StaticKernel) -> Mapping[str, float | None]:
    function, assembled = kernel.function, kernel.assembled
    return {
        "registers": None if assembled is None else assembled.registers,
        "register_occupancy": kernel.register_occupancy_pct,
        "spill_stores": None if assembled is None else assembled.spill_store_bytes,
        "spill_loads": None if assembled is None else assembled.spill_load_bytes,
        "virtual_registers": function.virtual_registers,
        "shared_bytes": function.shared_bytes,
        "instructions": function.instructions,
        "branches": function.branches,
    }
