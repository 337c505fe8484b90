"""Match the kernels of all layers of a program.

Layers name kernels differently (`parse_kernel_signature`). Two are matched only if no other match is possible: a
profiler's bare `copy` is neither `copy<4>` nor `copy<8>` if PTX has both. The source of a template belongs to all its
instances.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
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


_NameGroup = list[_LayerName]
"""Names of one kernel, one for each layer."""


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
    owners = [_find_owner(group, by_function.get(group[0].signature.function, ())) for group in groups]
    instances = Counter(owner.signature for owner in owners if owner is not None)
    found: list[MatchedKernel] = []
    for group, owner in zip(groups, owners, strict=True):
        names = [name.text for name in group]
        # The best known name is a profiler's, or the source's; else the mangled one.
        told = owner.name if owner is not None and instances[owner.signature] == 1 else names[0]
        found.append(
            MatchedKernel(
                name=next((name for measured in (ncu, runs) for name in names if name in measured), told),
                source=owner,
                ptx=tuple(one for name in names for one in ptx.get(name, ())),
                ncu=tuple(one for name in names for one in ncu.get(name, ())),
                runs=tuple(runs[name] for name in names if name in runs),
            )
        )
    found += [MatchedKernel(one.name, one) for one in source if one.signature not in instances]
    return tuple(sorted(found, key=lambda kernel: (-(kernel.runtime_share or 0.0), kernel.name)))


def _group_names(layers: Sequence[Collection[str]]) -> list[_NameGroup]:
    """Group the names that belong to one kernel."""
    by_function: dict[str, list[_LayerName]] = defaultdict(list)
    for text in sorted({text for layer in layers for text in layer}):
        places = frozenset(number for number, layer in enumerate(layers) if text in layer)
        name = _LayerName(text, parse_kernel_signature(text), places)
        by_function[name.signature.function].append(name)
    return [group for names in by_function.values() for group in _group_alike(names)]


def _group_alike(names: Sequence[_LayerName]) -> Iterator[_NameGroup]:
    """Group names with one function. The most explicit come first, so that a vague name does not take the first match.
    Names with other template arguments are skipped: a program may have thousands."""
    known: dict[Texts | None, list[_LayerName]] = defaultdict(list)
    for name in names:
        known[name.arguments].append(name)
    for arguments in [one for one, alike in known.items() if len(alike) > _MOST]:
        yield from ([name] for name in known.pop(arguments))
    groups: dict[Texts | None, list[_NameGroup]] = {arguments: [] for arguments in known}
    for name in sorted(chain.from_iterable(known.values()), key=lambda name: -name.signature.told):
        fitting = [group for group in _find_near(groups, name) if _can_take(group, name.signature)]
        if (
            len(fitting) == 1
            and not any(one.layers & name.layers for one in fitting[0])
            and not any(one.is_rival(name) and _can_take(fitting[0], one.signature) for one in _find_near(known, name))
        ):
            fitting[0].append(name)
        else:
            groups[name.arguments].append([name])
    yield from chain.from_iterable(groups.values())


def _can_take(group: _NameGroup, signature: KernelSignature) -> bool:
    return all(signature.can_match(name.signature) for name in group)


def _find_near(known: Mapping[Texts | None, Sequence[_T]], name: _LayerName) -> Iterator[_T]:
    """Yield names that may have this name's template arguments; all, if it has none."""
    wanted = known if name.arguments is None else dict.fromkeys((name.arguments, None))
    return (one for arguments in wanted for one in known.get(arguments, ()))


def _find_owner(group: _NameGroup, source: Sequence[SourceKernel]) -> SourceKernel | None:
    """Return the source kernel of a group; None if two match, or several kernels share a name."""
    fitting = [one for one in source if _can_take(group, one.signature)]
    return fitting[0] if len(fitting) == 1 and not fitting[0].overloaded else None


def _list_source_kernels(layer: SourceLayer) -> tuple[SourceKernel, ...]:
    kernels: dict[KernelSignature, list[Kernel]] = defaultdict(list)
    for kernel in layer.source.kernels:
        kernels[parse_source_signature(kernel.name, template=bool(kernel.template))].append(kernel)
    by_function: dict[str, list[KernelSignature]] = defaultdict(list)
    names: dict[KernelSignature, set[str]] = defaultdict(set)
    for signature, defined in kernels.items():
        by_function[signature.function].append(signature)
        names[signature].update(kernel.name for kernel in defined)
    findings: dict[str, list[CudaFinding]] = defaultdict(list)
    for finding in layer.analysis.findings:
        findings[finding.kernel].append(finding)
    unclear: set[KernelSignature] = set()
    for name in sorted(findings.keys() - {kernel.name for kernel in layer.source.kernels}):
        # A launch writes the kernel's name with only some namespaces, and with template arguments.
        spelled = parse_kernel_signature(name)
        fitting = [one for one in by_function.get(spelled.function, ()) if one.can_match(spelled)]
        owner = fitting[0] if len(fitting) == 1 else spelled
        names[owner].add(name)
        if len(fitting) > 1:
            unclear.add(owner)
    return tuple(
        SourceKernel(
            name=defined[0].name if (defined := kernels.get(signature, [])) else min(mine),
            signature=signature,
            kernel=defined[0] if len(defined) == 1 else None,
            findings=tuple(finding for name in sorted(mine) for finding in findings[name]),
            overloaded=len(defined) > 1 or signature in unclear,
        )
        for signature, mine in names.items()
    )


def _list_run_kernels(layer: TraceLayer) -> dict[str, RunKernel]:
    table = layer.run.timeline.kernels
    grids: dict[str, list[Sequence[int]]] = defaultdict(list)
    blocks: dict[str, list[Sequence[int]]] = defaultdict(list)
    for activity in layer.trace.tree.activities:
        if activity.kind is ActivityKind.KERNEL:
            grids[activity.name].append(activity.grid)
            blocks[activity.name].append(activity.block)
    return {
        total.name: RunKernel(
            total=total,
            share=total.total_ns / table.total_ns if table.total_ns else 0.0,
            most_blocks=_find_largest(grids[total.name]),
            most_threads=_find_largest(blocks[total.name]),
        )
        for total in table.kernels
    }


def _find_largest(sizes: Sequence[Sequence[int]]) -> int | None:
    return max(map(math.prod, sizes)) if sizes and all(sizes) else None
