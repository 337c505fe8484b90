"""Match the kernels of all layers of a program.

Layers name kernels differently (`parse_kernel_signature`). Two are matched only if no other match is possible: a
profiler's bare `copy` is neither `copy<4>` nor `copy<8>` if PTX has both. The source of a template belongs to all its
instances.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from frx_graph.analyzers.cuda.analysis import CudaFinding
from frx_graph.analyzers.kernels.analysis import LabelledKernel
from frx_graph.analyzers.kernels.ptx_analysis import StaticKernel
from frx_graph.analyzers.layers import Layers, SourceLayer, TraceLayer
from frx_graph.analyzers.timeline.kernel_table import KernelTotal
from frx_graph.evidence.cuda.source import Kernel
from frx_graph.evidence.kernel_signature import KernelSignature, parse_kernel_signature, parse_source_signature
from frx_graph.evidence.mangled_name import Texts
from frx_graph.evidence.trace.events import ActivityKind

_MOST = 500
"""Names with the same function and template arguments that are compared with each other. No program has more; beyond
this number each is a separate kernel."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SourceKernel:
    """A kernel in the source; `kernel` is None if only its launch is known, or several have its name. `overloaded`
    means that its findings may belong to several."""

    name: str
    signature: KernelSignature
    kernel: Kernel | None
    findings: tuple[CudaFinding, ...]
    overloaded: bool = False


@dataclass(frozen=True, slots=True)
class RunKernel:
    """A kernel in a trace. `share` is its part of the time of all kernels, 0..1. `most_blocks`, and `most_threads` per
    block, are the maxima over its launches, None if one is missing."""

    total: KernelTotal
    share: float
    most_blocks: int | None
    most_threads: int | None


@dataclass(frozen=True, slots=True)
class MatchedKernel:
    """One kernel. A layer may have it more than once, on several devices or under several names."""

    name: str
    source: SourceKernel | None = None
    ptx: tuple[StaticKernel, ...] = ()
    ncu: tuple[LabelledKernel, ...] = ()
    runs: tuple[RunKernel, ...] = ()

    @property
    def runtime_share(self) -> float | None:
        """Return its part of the measured time, or of the run's, 0..1; None if neither is known."""
        shares = [one.attribution.runtime_share_pct for one in self.ncu]
        known = [share for share in shares if share is not None]
        if known and len(known) == len(shares):
            return min(1.0, sum(known) / 100.0)
        return min(1.0, sum(run.share for run in self.runs)) if self.runs else None

    @property
    def function(self) -> str:
        """Return its bare name, by which Nsight Compute finds it."""
        names = [one.summary.kernel for one in self.ncu] + [one.total.name for one in self.runs]
        names += [self.source.name] if self.source is not None else []
        return parse_kernel_signature((names or [self.name])[0]).function


@dataclass(frozen=True, slots=True)
class _LayerName:
    """A name and the layers that use it."""

    text: str
    signature: KernelSignature
    layers: frozenset[int]

    @property
    def arguments(self) -> Texts | None:
        """Return template arguments; None if one is not given."""
        arguments = self.signature.arguments
        return None if arguments is None or None in arguments else arguments

    def is_rival(self, other: _LayerName) -> bool:
        """Return True for another name of the same layer with as much detail."""
        return self is not other and bool(self.layers & other.layers) and self.signature.told >= other.signature.told


@dataclass(slots=True)
class _NameGroup:
    """Names of one kernel, one for each layer."""

    names: list[_LayerName] = field(default_factory=list)

    @property
    def layers(self) -> frozenset[int]:
        return frozenset(layer for name in self.names for layer in name.layers)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(name.text for name in self.names)

    def can_take(self, signature: KernelSignature) -> bool:
        return all(signature.can_match(name.signature) for name in self.names)


def match_kernels(layers: Layers) -> tuple[MatchedKernel, ...]:
    """Match the kernels of all layers, those with the most time first, then by name."""
    ptx: dict[str, list[StaticKernel]] = defaultdict(list)
    ncu: dict[str, list[LabelledKernel]] = defaultdict(list)
    for static in layers.ptx.analysis.kernels if layers.ptx is not None else ():
        ptx[static.function.name].append(static)
    for labelled in layers.ncu.analysis.kernels if layers.ncu is not None else ():
        ncu[labelled.summary.kernel].append(labelled)
    runs = _list_run_kernels(layers.trace) if layers.trace is not None else {}
    groups = _group_names((ptx, ncu, runs))
    source = _list_source_kernels(layers.source) if layers.source is not None else ()
    by_function: dict[str, list[SourceKernel]] = defaultdict(list)
    for one in source:
        by_function[one.signature.function].append(one)
    owners = [_find_owner(group, by_function.get(group.names[0].signature.function, ())) for group in groups]
    instances = Counter(owner.signature for owner in owners if owner is not None)
    found = [
        MatchedKernel(
            name=_choose_name(group.texts, owner, instances, ncu, runs),
            source=owner,
            ptx=tuple(one for name in group.texts for one in ptx.get(name, ())),
            ncu=tuple(one for name in group.texts for one in ncu.get(name, ())),
            runs=tuple(runs[name] for name in group.texts if name in runs),
        )
        for group, owner in zip(groups, owners, strict=True)
    ]
    found += [MatchedKernel(one.name, one) for one in source if one.signature not in instances]
    return tuple(sorted(found, key=lambda kernel: (-(kernel.runtime_share or 0.0), kernel.name)))


def _group_names(layers: Sequence[Collection[str]]) -> list[_NameGroup]:
    """Group the names that belong to one kernel."""
    by_function: dict[str, list[_LayerName]] = defaultdict(list)
    for text in sorted({text for layer in layers for text in layer}):
        name = _LayerName(
            text, parse_kernel_signature(text), frozenset(i for i, layer in enumerate(layers) if text in layer)
        )
        by_function[name.signature.function].append(name)
    return [group for names in by_function.values() for group in _group_alike(names)]


def _group_alike(names: Sequence[_LayerName]) -> list[_NameGroup]:
    """Group names with one function. The most explicit come first, so that a vague name does not take the first match.
    Names with other template arguments are skipped: a program may have thousands."""
    known: dict[Texts | None, list[_LayerName]] = defaultdict(list)
    for name in names:
        known[name.arguments].append(name)
    found = [_NameGroup([name]) for alike in known.values() if len(alike) > _MOST for name in alike]
    known = {arguments: alike for arguments, alike in known.items() if len(alike) <= _MOST}
    groups: dict[Texts | None, list[_NameGroup]] = {arguments: [] for arguments in known}
    for name in sorted((name for alike in known.values() for name in alike), key=lambda name: -name.signature.told):
        fitting = [group for group in _find_near(groups, name) if group.can_take(name.signature)]
        if len(fitting) == 1 and not fitting[0].layers & name.layers:
            rivals = [
                one for one in _find_near(known, name) if one.is_rival(name) and fitting[0].can_take(one.signature)
            ]
            if not rivals:
                fitting[0].names.append(name)
                continue
        groups[name.arguments].append(_NameGroup([name]))
    return [*found, *(group for some in groups.values() for group in some)]


def _find_near(known: Mapping[Texts | None, Sequence[_T]], name: _LayerName) -> Iterator[_T]:
    """Yield names that may have this name's template arguments; all, if it has none."""
    wanted = known if name.arguments is None else dict.fromkeys((name.arguments, None))
    return (one for arguments in wanted for one in known.get(arguments, ()))


def _find_owner(group: _NameGroup, source: Sequence[SourceKernel]) -> SourceKernel | None:
    """Return the source kernel of a group; None if two match, or several kernels share a name."""
    fitting = [one for one in source if group.can_take(one.signature)]
    return fitting[0] if len(fitting) == 1 and not fitting[0].overloaded else None


def _choose_name(
    names: Sequence[str],
    owner: SourceKernel | None,
    instances: Mapping[KernelSignature, int],
    ncu: Mapping[str, Sequence[LabelledKernel]],
    runs: Mapping[str, RunKernel],
) -> str:
    """Return the best known name: a profiler's, or the source's; else the mangled one."""
    measured = [name for name in names if name in ncu] or [name for name in names if name in runs]
    if measured:
        return measured[0]
    return owner.name if owner is not None and instances[owner.signature] == 1 else names[0]


def _list_source_kernels(layer: SourceLayer) -> tuple[SourceKernel, ...]:
    source, analysis = layer.source, layer.analysis
    kernels: dict[KernelSignature, list[Kernel]] = defaultdict(list)
    names: dict[KernelSignature, set[str]] = defaultdict(set)
    by_function: dict[str, list[KernelSignature]] = defaultdict(list)
    for kernel in source.kernels:
        signature = parse_source_signature(kernel.name, template=bool(kernel.template))
        if signature not in kernels:
            by_function[signature.function].append(signature)
        kernels[signature].append(kernel)
        names[signature].add(kernel.name)
    unclear: set[KernelSignature] = set()
    for name in _list_launched(layer):
        # A launch writes the kernel's name with only some namespaces, and with template arguments.
        spelled = parse_kernel_signature(name)
        fitting = [one for one in by_function.get(spelled.function, ()) if one.can_match(spelled)]
        owner = fitting[0] if len(fitting) == 1 else spelled
        names[owner].add(name)
        if len(fitting) > 1:
            unclear.add(owner)
    findings: dict[str, list[CudaFinding]] = defaultdict(list)
    for finding in analysis.findings:
        findings[finding.kernel].append(finding)
    found = []
    for signature, mine in names.items():
        defined = kernels.get(signature, [])
        found.append(
            SourceKernel(
                name=defined[0].name if defined else min(mine),
                signature=signature,
                kernel=defined[0] if len(defined) == 1 else None,
                findings=tuple(finding for name in sorted(mine) for finding in findings.get(name, ())),
                overloaded=len(defined) > 1 or signature in unclear,
            )
        )
    return tuple(found)


def _list_launched(layer: SourceLayer) -> list[str]:
    defined = {kernel.name for kernel in layer.source.kernels}
    return sorted({finding.kernel for finding in layer.analysis.findings} - defined)


def _list_run_kernels(layer: TraceLayer) -> dict[str, RunKernel]:
    table = layer.run.timeline.kernels
    shapes: dict[str, list[tuple[int | None, int | None]]] = defaultdict(list)
    for activity in layer.trace.tree.activities:
        if activity.kind is ActivityKind.KERNEL:
            shapes[activity.name].append((_multiply_sizes(activity.grid), _multiply_sizes(activity.block)))
    return {
        total.name: RunKernel(
            total=total,
            share=total.total_ns / table.total_ns if table.total_ns else 0.0,
            most_blocks=_find_largest(blocks for blocks, _ in shapes[total.name]),
            most_threads=_find_largest(threads for _, threads in shapes[total.name]),
        )
        for total in table.kernels
    }


def _multiply_sizes(sizes: Sequence[int]) -> int | None:
    return math.prod(sizes) if sizes else None


def _find_largest(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    numbers = [size for size in known if size is not None]
    return max(numbers) if numbers and len(numbers) == len(known) else None
