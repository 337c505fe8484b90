"""Diagnose warps that fetch or write more sectors of global memory than their words need.

- Source, for: neighbouring threads access distant elements (certain); narrow loads (hint). Missing tiles are none: they
  read whole sectors, but too often.
- Source, against: all accesses are adjacent (certain).
- PTX, for: many instructions access global memory (hint).
- PTX, against: no instruction does (certain).
- Counters, for: more sectors per request than words need (measured); warps wait for memory, if another layer gives the
  cause.
- Counters, against: whole sectors (measured).

Loads and stores are separate sides: only the counter of stores confirms or refutes the source's findings on stores. A
warp needs as many sectors as its words have bytes, which come from the source, or from the types in the kernel's name.
If neither gives them, 8 and 16 sectors may be whole ones of wide words, or every second and fourth of narrow ones. One
sector more is a row of words that does not begin at a sector.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.kernels.analysis import LabelledKernel
from frx_graph.analyzers.kernels.coalescing import (
    COALESCED_SECTORS,
    SECTORS_WITHIN,
    count_sectors,
    is_whole_vector,
    parse_wide_word,
)
from frx_graph.analyzers.kernels.ptx_analysis import StaticKernel
from frx_graph.analyzers.kernels.speed_of_light import Bound, judge_speed_of_light
from frx_graph.analyzers.reconcile.matched_kernels import SourceKernel
from frx_graph.analyzers.reconcile.signal import DiagnosisRule, Grade, Layer, Signal, Weight, signal_counter
from frx_graph.evidence.cuda.source import Access, Space, StrideKind, Use
from frx_graph.evidence.ncu.presets import Preset
from frx_graph.evidence.ptx.instruction import Kind

LOADS, STORES, ATOMICS = "loads", "stores", "atomics"
_ABOUT = {Use.READ: LOADS, Use.WRITE: STORES, Use.ATOMIC: ATOMICS}
_COUNTERS = {LOADS: "uncoalesced_access", STORES: "sectors_per_store"}
_KINDS = (Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.ATOMIC)


def _inspect_source(source: SourceKernel) -> Iterator[Signal]:
    found = [one for one in source.findings if one.card.id == "uncoalesced_access"]
    for finding in found:
        about = LOADS if finding.access is None else _ABOUT[finding.access.use]
        yield Signal(Layer.SOURCE, finding.card.id, True, Grade.CERTAIN, finding.seen, about, line=finding.line)
    accesses = _list_global_accesses(source)
    if found or source.kernel is None or not source.kernel.complete or not accesses:
        return
    if all(one.stride.kind in (StrideKind.COALESCED, StrideKind.BROADCAST) for one in accesses):
        said = f"neighbouring threads use neighbouring elements in all {len(accesses)} accesses of global memory"
        yield Signal(Layer.SOURCE, "coalesced", False, Grade.CERTAIN, said)


def _inspect_ptx(kernel: StaticKernel) -> Iterator[Signal]:
    function = kernel.function
    if not function.calls and not any(function.mix.get(kind) for kind in _KINDS):
        said = "the compiled kernel neither reads nor writes global memory"
        yield Signal(Layer.PTX, "no_global_memory", False, Grade.CERTAIN, said)


def _inspect_counters(labelled: LabelledKernel, source: SourceKernel | None) -> Iterator[Signal]:
    values = labelled.summary.values
    counts = {LOADS: count_sectors(values, "load"), STORES: count_sectors(values, "store")}
    counted = [
        _judge_sectors(source, labelled, about, sectors) for about, sectors in counts.items() if sectors is not None
    ]
    yield from counted
    against = [one for one in counted if not one.supports and one.grade is Grade.MEASURED]
    if len(against) == 2:
        yield signal_counter(against[0].label, "; ".join(one.evidence for one in against), supports=False)


def _judge_sectors(source: SourceKernel | None, labelled: LabelledKernel, about: str, sectors: float) -> Signal:
    label = _COUNTERS[about]
    said = f"{sectors:.1f} sectors for each global {about.removesuffix('s')} of a warp"
    word = _find_word_bytes(source, about) or parse_wide_word(labelled.summary.kernel)
    whole = max(COALESCED_SECTORS, word or 0)
    if sectors <= whole * (1 + SECTORS_WITHIN):
        if about == LOADS and any(
            one.use is Use.READ and one.stride.kind is StrideKind.BROADCAST for one in _list_global_accesses(source)
        ):
            # Some loads rightly take one sector, so an average of four may hide others that take 32.
            said += ", an average with those that are the same for all threads"
            return Signal(Layer.NCU, label, False, Grade.HINT, said, about)
        return signal_counter(label, said, supports=False, about=about)
    if sectors <= whole + 1 + SECTORS_WITHIN:
        said += f", one more than {whole:.0f} at most: rows of words that do not begin with a sector"
        return Signal(Layer.NCU, label, True, Grade.HINT, said, about)
    if judge_speed_of_light(labelled.summary.values, labelled.summary.rules).bound is Bound.COMPUTE:
        said += ", but arithmetic is what the kernel waits for"
        return Signal(Layer.NCU, label, True, Grade.HINT, said, about)
    told = word is not None or not is_whole_vector(sectors)
    return signal_counter(label, said, supports=True, about=about, alone=told)


def _find_word_bytes(source: SourceKernel | None, about: str) -> int | None:
    """Return the bytes of the widest word of these accesses; None if one is unknown."""
    words = [one.element_bytes for one in _list_global_accesses(source) if _ABOUT[one.use] == about]
    known = [word for word in words if word is not None]
    return max(known) if known and len(known) == len(words) else None


def _list_global_accesses(source: SourceKernel | None) -> tuple[Access, ...]:
    """Return accesses that use, or may use, global memory."""
    if source is None or source.kernel is None:
        return ()
    return tuple(one for one in source.kernel.accesses if one.space in (Space.GLOBAL, Space.UNKNOWN))


DIAGNOSIS = DiagnosisRule(
    name="inefficient_global_memory_access",
    title="Inefficient access of global memory",
    told_by=frozenset({Layer.SOURCE, Layer.NCU}),
    decides=Preset(
        "memory",
        "how many sectors an access of global memory takes",
        ("compute_throughput", "memory_throughput", "sectors_per_load", "sectors_per_store"),
    ),
    findings={"missing_vectorized_loads": Weight(Grade.HINT, LOADS)},
    labels={
        "ptx_global_memory_heavy": Weight(Grade.HINT),
        "warp_stall_memory": Weight(Grade.MEASURED, alone=False),
    },
    inspect_source=_inspect_source,
    inspect_ptx=_inspect_ptx,
    inspect_counters=_inspect_counters,
)
