"""The kernels of a program, each with what every layer has of it.

Layers name kernels differently (`kernel_signature`). Two are matched only if their names cannot be those of different
kernels of the same layer: a profiler's bare `copy` is neither `copy<4>` nor `copy<8>`, if PTX has both, and stands for
itself. The source of a template is that of all its instances.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from frx_graph.evidence.cuda.source import Kernel
from frx_graph.evidence.kernel_signature import KernelSignature, kernel_signature, source_signature
from frx_graph.evidence.trace.events import ActivityKind
from frx_graph.passes.cuda.analysis import CudaFinding
from frx_graph.passes.cuda.launch_advice import LaunchAdvice
from frx_graph.passes.kernels.analysis import LabelledKernel
from frx_graph.passes.kernels.ptx_analysis import StaticKernel
from frx_graph.passes.layers import Layers, SourceLayer, TraceLayer
from frx_graph.passes.timeline.kernel_table import KernelTotal


@dataclass(frozen=True, slots=True)
class SourceKernel:
    """A kernel in the source; `kernel` is None where only its launch is there, or several have its name, whose findings
    cannot be told apart."""

    name: str
    signature: KernelSignature
    kernel: Kernel | None
    findings: tuple[CudaFinding, ...]
    launches: tuple[LaunchAdvice, ...]
    overloaded: bool = False


@dataclass(frozen=True, slots=True)
class RunKernel:
    """A kernel in a trace. `share` is its part of the time of all kernels, 0..1; `most_blocks` and `most_threads` of a
    block are the largest of its launches, None where the trace does not have them of all."""

    total: KernelTotal
    share: float
    most_blocks: int | None
    most_threads: int | None


@dataclass(frozen=True, slots=True)
class MatchedKernel:
    """One kernel. On several devices, or with several launches named apart, a layer may have it more than once."""

    name: str
    source: SourceKernel | None = None
    ptx: tuple[StaticKernel, ...] = ()
    ncu: tuple[LabelledKernel, ...] = ()
    runs: tuple[RunKernel, ...] = ()

    @property
    def runtime_share(self) -> float | None:
        """Its part of the time of all kernels that were measured, 0..1, or of the run; None where neither tells."""
        shares = [one.attribution.runtime_share_pct for one in self.ncu]
        known = [share for share in shares if share is not None]
        if known and len(known) == len(shares):
            return min(1.0, sum(known) / 100.0)
        return min(1.0, sum(run.share for run in self.runs)) if self.runs else None

    @property
    def function(self) -> str:
        """Its name without all else, by which Nsight Compute finds it."""
        names = [one.summary.kernel for one in self.ncu] + [one.total.name for one in self.runs]
        names += [self.source.name] if self.source is not None else []
        return kernel_signature((names or [self.name])[0]).function


@dataclass(slots=True)
class _Group:
    """Names that are of one kernel."""

    names: list[str] = field(default_factory=list)
    signatures: list[KernelSignature] = field(default_factory=list)

    def takes(self, signature: KernelSignature) -> bool:
        return all(signature.fits(other) for other in self.signatures)


def match_kernels(layers: Layers) -> tuple[MatchedKernel, ...]:
    """All kernels of all layers, those of most time first, then by name."""
    ptx: dict[str, list[StaticKernel]] = defaultdict(list)
    ncu: dict[str, list[LabelledKernel]] = defaultdict(list)
    for static in layers.ptx.analysis.kernels if layers.ptx is not None else ():
        ptx[static.function.name].append(static)
    for labelled in layers.ncu.analysis.kernels if layers.ncu is not None else ():
        ncu[labelled.summary.kernel].append(labelled)
    runs = _runs(layers.trace) if layers.trace is not None else {}
    groups = _grouped({*ptx, *ncu, *runs})
    source = _source_kernels(layers.source) if layers.source is not None else ()
    owners = [_owner(group, source) for group in groups]
    found = [
        MatchedKernel(
            name=_shown(group.names, owner, ncu, runs, alone=owners.count(owner) == 1),
            source=owner,
            ptx=tuple(one for name in group.names for one in ptx.get(name, ())),
            ncu=tuple(one for name in group.names for one in ncu.get(name, ())),
            runs=tuple(runs[name] for name in group.names if name in runs),
        )
        for group, owner in zip(groups, owners, strict=True)
    ]
    found += [MatchedKernel(one.name, one) for one in source if one not in owners]
    return tuple(sorted(found, key=lambda kernel: (-(kernel.runtime_share or 0.0), kernel.name)))


def _grouped(names: Iterable[str]) -> list[_Group]:
    """Those that tell most first, so that one which tells little is not taken for the first that it fits."""
    known = sorted(((kernel_signature(name), name) for name in names), key=lambda one: (-one[0].told, one[1]))
    by_function: dict[str, list[_Group]] = defaultdict(list)
    for signature, name in known:
        groups = by_function[signature.function]
        fitting = [group for group in groups if group.takes(signature)]
        if len(fitting) != 1:
            fitting = [_Group()]
            groups += fitting
        fitting[0].names.append(name)
        fitting[0].signatures.append(signature)
    return [group for groups in by_function.values() for group in groups]


def _owner(group: _Group, source: Sequence[SourceKernel]) -> SourceKernel | None:
    """The kernel of the source that a group is of; None where two could be, or one name stands for several."""
    fitting = [one for one in source if group.takes(one.signature)]
    return fitting[0] if len(fitting) == 1 and not fitting[0].overloaded else None


def _shown(
    names: Sequence[str],
    owner: SourceKernel | None,
    ncu: Mapping[str, Sequence[LabelledKernel]],
    runs: Mapping[str, RunKernel],
    *,
    alone: bool,
) -> str:
    """The name that people know it by: as a profiler writes it, or the source; mangled if there is no other."""
    measured = [name for name in names if name in ncu] or [name for name in names if name in runs]
    if measured:
        return measured[0]
    return owner.name if owner is not None and alone else names[0]


def _source_kernels(layer: SourceLayer) -> tuple[SourceKernel, ...]:
    source, analysis = layer.source, layer.analysis
    kernels: dict[KernelSignature, list[Kernel]] = defaultdict(list)
    names: dict[KernelSignature, str] = {}
    for kernel in source.kernels:
        signature = source_signature(kernel.name, template=bool(kernel.template))
        kernels[signature].append(kernel)
        names.setdefault(signature, kernel.name)
    # Findings on a launch have the kernel's name as it is launched.
    spelled = {name: kernel_signature(name) for name in _launched(layer)}
    for name, signature in spelled.items():
        if not any(signature.fits(known) for known in kernels):
            names.setdefault(signature, name)
    found = []
    for signature, name in names.items():
        mine = {other for other, spelling in spelled.items() if _only(spelling, names) == signature}
        mine |= {kernel.name for kernel in kernels.get(signature, ())}
        defined = kernels.get(signature, [])
        found.append(
            SourceKernel(
                name=name,
                signature=signature,
                kernel=defined[0] if len(defined) == 1 else None,
                findings=tuple(one for one in analysis.findings if one.kernel in mine),
                launches=tuple(one for one in analysis.launches if one.launch.kernel in mine),
                overloaded=len(defined) > 1,
            )
        )
    return tuple(found)


def _launched(layer: SourceLayer) -> set[str]:
    defined = {kernel.name for kernel in layer.source.kernels}
    launched = {advice.launch.kernel for advice in layer.analysis.launches}
    return (launched | {finding.kernel for finding in layer.analysis.findings}) - defined


def _only(signature: KernelSignature, known: Iterable[KernelSignature]) -> KernelSignature | None:
    fitting = [one for one in known if one.fits(signature)]
    return fitting[0] if len(fitting) == 1 else None


def _runs(layer: TraceLayer) -> dict[str, RunKernel]:
    table = layer.run.timeline.kernels
    shapes: dict[str, list[tuple[int | None, int | None]]] = defaultdict(list)
    for activity in layer.trace.tree.activities:
        if activity.kind is ActivityKind.KERNEL:
            shapes[activity.name].append((_product(activity.grid), _product(activity.block)))
    return {
        total.name: RunKernel(
            total=total,
            share=total.total_ns / table.total_ns if table.total_ns else 0.0,
            most_blocks=_most(blocks for blocks, _ in shapes[total.name]),
            most_threads=_most(threads for _, threads in shapes[total.name]),
        )
        for total in table.kernels
    }


def _product(sizes: Sequence[int]) -> int | None:
    if not sizes:
        return None
    product = 1
    for size in sizes:
        product *= size
    return product


def _most(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    numbers = [size for size in known if size is not None]
    return max(numbers) if numbers and len(numbers) == len(known) else None
