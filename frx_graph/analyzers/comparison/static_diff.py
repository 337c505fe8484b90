"""Compare two CUDA sources, or two PTX files, kernel by kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.comparison.matching import (
    Change,
    FindingChange,
    KernelFinding,
    KnownKernel,
    MatchedBy,
    Pair,
    compare_findings,
    list_changes,
    match_kernels,
)
from frx_graph.analyzers.cuda.launch_advice import LaunchAdvice
from frx_graph.analyzers.kernels.ptx_analysis import StaticKernel
from frx_graph.analyzers.layers import PtxLayer, SourceLayer
from frx_graph.evidence.cuda.source import Access, Kernel, Space, StrideKind, Use
from frx_graph.evidence.ptx.instruction import Kind

SURE = 0.5
"""Confidence from which a PTX label counts; hints from virtual registers and the number of branches have 0.2."""
_DESCRIPTIVE = frozenset({"ptx_global_memory_heavy"})
"""Labels of shares of the instructions: fewer other instructions for the same result raise such a share."""
_SOURCE_NUMBERS = (
    ("coalesced_accesses", "Global accesses of neighbouring elements", ""),
    ("strided_accesses", "Global accesses of elements apart", ""),
    ("unknown_accesses", "Global accesses of unknown stride", ""),
    ("static_shared_bytes", "Static shared memory", "byte"),
    ("bank_conflict", "Turns of the worst shared access known", ""),
    ("atomics", "Atomic operations", ""),
    ("barriers", "Barriers", ""),
    ("block_threads", "Threads of a block", ""),
)
_PTX_NUMBERS = (
    ("registers", "Registers a thread (ptxas)", ""),
    ("register_occupancy", "Occupancy that registers allow", "%"),
    ("spill_stores", "Spill stores a thread (ptxas)", "byte"),
    ("spill_loads", "Spill loads a thread (ptxas)", "byte"),
    ("virtual_registers", "Virtual registers (low confidence)", ""),
    ("shared_bytes", "Declared shared memory", "byte"),
    ("instructions", "Instructions", ""),
    ("branches", "Branches on a predicate", ""),
)


@dataclass(frozen=True, slots=True)
class StrideChange:
    """An array in global or shared memory that both versions of a kernel use. `a` and `b` are the distances between
    neighbouring threads, in elements, one for each kind of use; `?` if unknown."""

    array: str
    space: Space
    a: tuple[str, ...]
    b: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _KernelDiff:
    """Two versions of a kernel; `changes` includes equal numbers."""

    kernel_a: str
    kernel_b: str
    matched_by: MatchedBy
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class SourceKernelDiff(_KernelDiff):
    """Two versions of a kernel's source; `strides` has only differences."""

    strides: tuple[StrideChange, ...]


@dataclass(frozen=True, slots=True)
class PtxKernelDiff(_KernelDiff):
    """Two versions of a kernel's PTX. `assembled` means that registers and spills of both come from ptxas. Otherwise
    only virtual registers are known for both, and no spills. `mix` includes equal numbers."""

    assembled: bool
    mix: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class SourceDiff:
    """Two sources."""

    kernels: tuple[SourceKernelDiff, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    findings: tuple[FindingChange, ...]


@dataclass(frozen=True, slots=True)
class PtxDiff:
    """Two PTX files and the targets that they name."""

    target_a: str
    target_b: str
    kernels: tuple[PtxKernelDiff, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    findings: tuple[FindingChange, ...]


def compare_sources(a: SourceLayer, b: SourceLayer) -> SourceDiff:
    """Return the differences between two sources, in an order that does not depend on the side."""
    matching = match_kernels(a.source.kernels, b.source.kernels, lambda kernel: kernel.name)
    known = matching.map(lambda kernel: KnownKernel(kernel.name))
    kernels = [_compare_source(pair, a.analysis.launches, b.analysis.launches) for pair in matching.pairs]
    found_a, found_b = (
        [KernelFinding(finding.card.id, KnownKernel(finding.kernel)) for finding in side.analysis.findings]
        for side in (a, b)
    )
    return SourceDiff(
        kernels=tuple(sorted(kernels, key=_sort_names)),
        only_a=tuple(kernel.name for kernel in known.only_a),
        only_b=tuple(kernel.name for kernel in known.only_b),
        findings=compare_findings("source", known, found_a, found_b),
    )


def compare_ptx_files(a: PtxLayer, b: PtxLayer) -> PtxDiff:
    """Return the differences between two PTX files, in an order that does not depend on the side."""
    matching = match_kernels(a.analysis.kernels, b.analysis.kernels, lambda kernel: kernel.function.name)
    known = matching.map(lambda kernel: KnownKernel(kernel.function.name))
    return PtxDiff(
        target_a=a.module.target,
        target_b=b.module.target,
        kernels=tuple(sorted(map(_compare_ptx, matching.pairs), key=_sort_names)),
        only_a=tuple(kernel.name for kernel in known.only_a),
        only_b=tuple(kernel.name for kernel in known.only_b),
        findings=compare_findings("ptx", known, _find_in_ptx(a), _find_in_ptx(b)),
    )


def _sort_names(kernel: _KernelDiff) -> list[str]:
    return sorted((kernel.kernel_a, kernel.kernel_b))


def _find_in_ptx(layer: PtxLayer) -> list[KernelFinding]:
    return [
        KernelFinding(
            label.label,
            KnownKernel(kernel.function.name),
            defect=label.confidence >= SURE and label.label not in _DESCRIPTIVE,
        )
        for kernel in layer.analysis.kernels
        for label in kernel.labels
    ]


def _compare_source(
    pair: Pair[Kernel], launches_a: Sequence[LaunchAdvice], launches_b: Sequence[LaunchAdvice]
) -> SourceKernelDiff:
    ours, theirs = _list_strides(pair.a), _list_strides(pair.b)
    return SourceKernelDiff(
        kernel_a=pair.a.name,
        kernel_b=pair.b.name,
        matched_by=pair.by,
        changes=list_changes(_SOURCE_NUMBERS, _count_source(pair.a, launches_a), _count_source(pair.b, launches_b)),
        strides=tuple(
            StrideChange(array, space, ours[array, space], theirs[array, space])
            for array, space in sorted(ours.keys() & theirs.keys())
            if ours[array, space] != theirs[array, space]
        ),
    )


def _count_source(kernel: Kernel, launches: Sequence[LaunchAdvice]) -> Mapping[str, float | None]:
    # As in findings, two uses of an array with one stride count once.
    uses = {(access.base, access.stride) for access in kernel.accesses if access.space is Space.GLOBAL}
    kinds = Counter(stride.kind for _, stride in uses)
    shared = [array.bytes for array in kernel.arrays if array.space is Space.SHARED and not array.dynamic]
    conflicts = [access.conflict for access in kernel.accesses if access.space is Space.SHARED and access.conflict]
    name = kernel.name.rsplit("::", 1)[-1]
    threads = {one.threads for one in launches if one.launch.name == name}
    return {
        "coalesced_accesses": kinds[StrideKind.COALESCED] + kinds[StrideKind.BROADCAST],
        "strided_accesses": kinds[StrideKind.STRIDED] + kinds[StrideKind.SYMBOLIC],
        "unknown_accesses": kinds[StrideKind.UNKNOWN],
        "static_shared_bytes": None if None in shared else sum(size for size in shared if size is not None),
        "bank_conflict": max(conflicts, default=None),
        "atomics": sum(access.use is Use.ATOMIC for access in kernel.accesses),
        "barriers": len(kernel.barriers),
        "block_threads": threads.pop() if len(threads) == 1 else None,
    }


def _list_strides(kernel: Kernel) -> Mapping[tuple[str, Space], tuple[str, ...]]:
    found: dict[tuple[str, Space], set[str]] = {}
    for access in kernel.accesses:
        if access.space in (Space.GLOBAL, Space.SHARED):
            found.setdefault((access.base, access.space), set()).add(_format_stride(access))
    return {key: tuple(sorted(strides)) for key, strides in found.items()}


def _format_stride(access: Access) -> str:
    stride = access.stride
    if stride.kind is StrideKind.BROADCAST:
        return "0"
    return str(stride.elements) if stride.elements is not None else stride.text or "?"


def _compare_ptx(pair: Pair[StaticKernel]) -> PtxKernelDiff:
    mix_a, mix_b = pair.a.function.mix, pair.b.function.mix
    return PtxKernelDiff(
        kernel_a=pair.a.function.name,
        kernel_b=pair.b.function.name,
        matched_by=pair.by,
        changes=list_changes(_PTX_NUMBERS, _count_ptx(pair.a), _count_ptx(pair.b)),
        assembled=pair.a.assembled is not None and pair.b.assembled is not None,
        mix=tuple(
            Change(kind, kind, "", mix_a.get(kind, 0), mix_b.get(kind, 0))
            for kind in Kind
            if kind in mix_a.keys() | mix_b
        ),
    )


def _count_ptx(kernel: StaticKernel) -> Mapping[str, float | None]:
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
