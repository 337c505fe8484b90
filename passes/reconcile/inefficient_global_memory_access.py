"""Warps fetch or write more sectors of global memory than their words need.

    source    + elements of neighbouring threads lie apart (certain); narrow loads, no tiles (hints)
              - all accesses are of neighbours (certain)
    PTX       + much of it is access of global memory (hint)
              - it has none (certain)
    ncu       + more sectors a request than words need (measured); warps wait for memory, if another layer says why
              - whole sectors (measured)

Loads and stores are told apart: what the source says of a store only the counter of stores confirms or refutes. Of 8
and 16 sectors a request the counter cannot say whether they are whole: so many need words of 8 and 16 bytes, and every
second and fourth word of 4.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.evidence.cuda.source import Access, Space, StrideKind, Use
from frx_graph.evidence.ncu.presets import Preset
from frx_graph.evidence.ptx.instruction import Kind
from frx_graph.passes.kernels.analysis import LabelledKernel
from frx_graph.passes.kernels.labels import COALESCED_SECTORS, VECTOR_SECTORS, sectors_per_load, sectors_per_store
from frx_graph.passes.kernels.ptx_analysis import StaticKernel
from frx_graph.passes.kernels.speed_of_light import Bound, speed_of_light
from frx_graph.passes.reconcile.matched_kernels import MatchedKernel, SourceKernel
from frx_graph.passes.reconcile.signal import DiagnosisRule, Grade, Layer, Signal, counter, of_label, of_source

LOADS, STORES, ATOMICS = "loads", "stores", "atomics"
_ABOUT = {Use.READ: LOADS, Use.WRITE: STORES, Use.ATOMIC: ATOMICS}
_HINTS = {"missing_vectorized_loads": Grade.HINT, "no_shared_memory_tiling": Grade.HINT}
_COUNTER = "uncoalesced_access"
_KINDS = (Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.ATOMIC)
_WITHIN = 0.02
"""Of a number of sectors, as for the label `uncoalesced_access`."""


def signals(kernel: MatchedKernel) -> Iterator[Signal]:
    """What each layer says."""
    if kernel.source is not None:
        yield from _in_source(kernel.source)
    for static in kernel.ptx:
        yield from _in_ptx(static)
    for labelled in kernel.ncu:
        yield from _in_counters(labelled, mixed=_shares_elements(kernel.source))


def _in_source(source: SourceKernel) -> Iterator[Signal]:
    found = [one for one in source.findings if one.card.id == "uncoalesced_access"]
    for finding in found:
        about = LOADS if finding.access is None else _ABOUT[finding.access.use]
        yield Signal(Layer.SOURCE, finding.card.id, True, Grade.CERTAIN, finding.seen, about, line=finding.line)
    yield from of_source(source, _HINTS, LOADS)
    accesses = _global(source)
    if found or source.kernel is None or not source.kernel.complete or not accesses:
        return
    if all(one.stride.kind in (StrideKind.COALESCED, StrideKind.BROADCAST) for one in accesses):
        said = f"neighbouring threads use neighbouring elements in all {len(accesses)} accesses of global memory"
        yield Signal(Layer.SOURCE, "coalesced", False, Grade.CERTAIN, said)


def _in_ptx(kernel: StaticKernel) -> Iterator[Signal]:
    for label in kernel.labels:
        if label.label == "ptx_global_memory_heavy":
            yield of_label(Layer.PTX, label, Grade.HINT)
    function = kernel.function
    if not function.calls and not any(function.mix.get(kind) for kind in _KINDS):
        said = "the compiled kernel neither reads nor writes global memory"
        yield Signal(Layer.PTX, "no_global_memory", False, Grade.CERTAIN, said)


def _in_counters(kernel: LabelledKernel, *, mixed: bool) -> Iterator[Signal]:
    """`mixed`: some loads take one sector, as they should, so that an average of four may hide others that take 32."""
    values = kernel.summary.values
    whole = []
    for about, sectors in ((LOADS, sectors_per_load(values)), (STORES, sectors_per_store(values))):
        if sectors is None:
            continue
        said = f"{sectors:.1f} sectors for each global {about.removesuffix('s')} of a warp"
        if sectors <= COALESCED_SECTORS * (1 + _WITHIN):
            if about == LOADS and mixed:
                said += ", an average with those that are the same for all threads"
                yield Signal(Layer.NCU, _COUNTER, False, Grade.HINT, said, about)
            else:
                whole.append(said)
                yield counter(_COUNTER, said, supports=False, about=about)
        elif speed_of_light(values).bound is Bound.COMPUTE:
            said += ", but arithmetic is what the kernel waits for"
            yield Signal(Layer.NCU, _COUNTER, True, Grade.HINT, said, about)
        else:
            told = not any(abs(sectors - vectors) <= _WITHIN * vectors for vectors in VECTOR_SECTORS)
            yield counter(_COUNTER, said, supports=True, about=about, alone=told)
    if len(whole) == 2:
        yield counter(_COUNTER, "; ".join(whole), supports=False)
    for label in kernel.labels:
        if label.label == "warp_stall_memory":
            yield counter(label.label, label.evidence, supports=True, alone=False)


def _global(source: SourceKernel | None) -> tuple[Access, ...]:
    """Accesses that are of global memory, or may be."""
    if source is None or source.kernel is None:
        return ()
    return tuple(one for one in source.kernel.accesses if one.space in (Space.GLOBAL, Space.UNKNOWN))


def _shares_elements(source: SourceKernel | None) -> bool:
    return any(one.use is Use.READ and one.stride.kind is StrideKind.BROADCAST for one in _global(source))


DIAGNOSIS = DiagnosisRule(
    name="inefficient_global_memory_access",
    title="Inefficient access of global memory",
    signals=signals,
    told_by=frozenset({Layer.SOURCE, Layer.NCU}),
    decides=Preset(
        "memory",
        "how many sectors an access of global memory takes",
        ("compute_throughput", "memory_throughput", "sectors_per_load", "sectors_per_store"),
    ),
)
