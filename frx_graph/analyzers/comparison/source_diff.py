"""What changed from one CUDA source to another: how threads use memory, and what was found of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from frx_graph.analyzers.comparison.finding_changes import FindingChange, Found, KnownKernel, finding_changes
from frx_graph.analyzers.comparison.matching import Change, MatchedBy, Pair, match_kernels
from frx_graph.analyzers.cuda.launch_advice import LaunchAdvice
from frx_graph.analyzers.layers import SourceLayer
from frx_graph.evidence.cuda.source import Access, Kernel, Space, StrideKind, Use

_UNKNOWN = "?"
_BROADCAST = "0"


@dataclass(frozen=True, slots=True)
class StrideChange:
    """An array that both versions of a kernel use, in global or shared memory: how far neighbouring threads of a warp
    lie apart, in elements, for each way in which it is used; `?` where that is not known."""

    array: str
    space: Space
    a: tuple[str, ...]
    b: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceKernelDiff:
    """Two versions of a kernel; `changes` has what is equal, too, `strides` only what is not."""

    kernel_a: str
    kernel_b: str
    matched_by: MatchedBy
    changes: tuple[Change, ...]
    strides: tuple[StrideChange, ...]


@dataclass(frozen=True, slots=True)
class SourceDiff:
    """Two sources."""

    kernels: tuple[SourceKernelDiff, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    findings: tuple[FindingChange, ...]


def source_diff(a: SourceLayer, b: SourceLayer) -> SourceDiff:
    """What differs between them, kernels in an order that is the same from either side."""
    matching = match_kernels(a.source.kernels, b.source.kernels, lambda kernel: kernel.name)
    known = matching.map(lambda kernel: KnownKernel(kernel.name))
    kernels = [_kernel_diff(pair, a.analysis.launches, b.analysis.launches) for pair in matching.pairs]
    return SourceDiff(
        kernels=tuple(sorted(kernels, key=lambda one: sorted((one.kernel_a, one.kernel_b)))),
        only_a=tuple(kernel.name for kernel in known.only_a),
        only_b=tuple(kernel.name for kernel in known.only_b),
        findings=finding_changes("source", known, _found(a), _found(b)),
    )


def _found(layer: SourceLayer) -> tuple[Found, ...]:
    return tuple(Found(finding.card.id, KnownKernel(finding.kernel)) for finding in layer.analysis.findings)


def _kernel_diff(
    pair: Pair[Kernel], launches_a: tuple[LaunchAdvice, ...], launches_b: tuple[LaunchAdvice, ...]
) -> SourceKernelDiff:
    ours, theirs = _numbers(pair.a, launches_a), _numbers(pair.b, launches_b)
    return SourceKernelDiff(
        kernel_a=pair.a.name,
        kernel_b=pair.b.name,
        matched_by=pair.by,
        changes=tuple(Change(name, title, unit, ours[name], theirs[name]) for name, title, unit in _NUMBERS),
        strides=_stride_changes(pair.a, pair.b),
    )


_NUMBERS = (
    ("coalesced_accesses", "Global accesses of neighbouring elements", ""),
    ("strided_accesses", "Global accesses of elements apart", ""),
    ("unknown_accesses", "Global accesses of unknown stride", ""),
    ("static_shared_bytes", "Static shared memory", "byte"),
    ("bank_conflict", "Turns of the worst shared access known", ""),
    ("atomics", "Atomic operations", ""),
    ("barriers", "Barriers", ""),
    ("block_threads", "Threads of a block", ""),
)
_SIDE_BY_SIDE = (StrideKind.COALESCED, StrideKind.BROADCAST)
_APART = (StrideKind.STRIDED, StrideKind.SYMBOLIC)


def _numbers(kernel: Kernel, launches: tuple[LaunchAdvice, ...]) -> Mapping[str, float | None]:
    """An array that is used twice with one stride counts once, as it does for findings."""
    uses = {(access.base, access.stride) for access in kernel.accesses if access.space is Space.GLOBAL}
    kinds = Counter(stride.kind for _, stride in uses)
    shared = [array.bytes for array in kernel.arrays if array.space is Space.SHARED and not array.dynamic]
    conflicts = [access.conflict for access in kernel.accesses if access.space is Space.SHARED and access.conflict]
    name = kernel.name.rsplit("::", 1)[-1]
    threads = {one.threads for one in launches if one.launch.name == name}
    return {
        "coalesced_accesses": sum(kinds[kind] for kind in _SIDE_BY_SIDE),
        "strided_accesses": sum(kinds[kind] for kind in _APART),
        "unknown_accesses": kinds[StrideKind.UNKNOWN],
        "static_shared_bytes": None if None in shared else sum(size for size in shared if size is not None),
        "bank_conflict": max(conflicts, default=None),
        "atomics": sum(access.use is Use.ATOMIC for access in kernel.accesses),
        "barriers": len(kernel.barriers),
        "block_threads": threads.pop() if len(threads) == 1 else None,
    }


def _stride_changes(a: Kernel, b: Kernel) -> tuple[StrideChange, ...]:
    ours, theirs = _strides(a), _strides(b)
    return tuple(
        StrideChange(array, space, ours[array, space], theirs[array, space])
        for array, space in sorted(ours.keys() & theirs.keys())
        if ours[array, space] != theirs[array, space]
    )


def _strides(kernel: Kernel) -> Mapping[tuple[str, Space], tuple[str, ...]]:
    found: dict[tuple[str, Space], set[str]] = {}
    for access in kernel.accesses:
        if access.space in (Space.GLOBAL, Space.SHARED):
            found.setdefault((access.base, access.space), set()).add(_stride(access))
    return {key: tuple(sorted(strides)) for key, strides in found.items()}


def _stride(access: Access) -> str:
    stride = access.stride
    if stride.kind is StrideKind.BROADCAST:
        return _BROADCAST
    return str(stride.elements) if stride.elements is not None else stride.text or _UNKNOWN
