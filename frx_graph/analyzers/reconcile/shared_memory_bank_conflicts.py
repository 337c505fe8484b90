"""Diagnose threads of a warp that need different words of one bank of shared memory, which serves one at a time.

- Source, for: the stride between threads is a multiple of an even one (certain).
- Source, against: no access has conflicts (certain).
- PTX, against: the compiled kernel does not access shared memory (certain).
- Counters, for: conflicts in a tenth of the wavefronts, or Nsight Compute's own rule (measured); a count alone (hint).
- Counters, against: fewer conflicts, or none (measured).
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.kernels.analysis import LabelledKernel
from frx_graph.analyzers.kernels.ptx_analysis import StaticKernel
from frx_graph.analyzers.reconcile.matched_kernels import SourceKernel
from frx_graph.analyzers.reconcile.signal import DiagnosisRule, Grade, Layer, Signal, Weight, signal_counter
from frx_graph.evidence.cuda.source import Space
from frx_graph.evidence.ncu.presets import Preset
from frx_graph.evidence.ptx.instruction import Kind

MUCH = 0.1
"""Conflicts per wavefront: the threshold of Nsight Compute's own rule `SharedMemoryConflicts`."""
_OWN_RULES = frozenset({"SharedMemoryConflicts", "UncoalescedSharedAccess"})
_BETTER = "OPT"
"""The kind of a rule that suggests an improvement."""
_COUNTER = "shared_bank_conflicts"
_PARTS = ("shared_load_bank_conflicts", "shared_store_bank_conflicts")
_KINDS = (Kind.SHARED_LOAD, Kind.SHARED_STORE, Kind.ATOMIC)


def _inspect_source(source: SourceKernel) -> Iterator[Signal]:
    kernel = source.kernel
    if kernel is None or not kernel.complete:
        return
    shared = [one for one in kernel.accesses if one.space in (Space.SHARED, Space.UNKNOWN)]
    if shared and all(one.conflict == 1 for one in shared):
        said = f"no two threads of a warp use one bank in any of {len(shared)} accesses of shared memory"
        yield Signal(Layer.SOURCE, "conflict_free", False, Grade.CERTAIN, said)


def _inspect_ptx(kernel: StaticKernel) -> Iterator[Signal]:
    function = kernel.function
    if not function.calls and not any(function.mix.get(kind) for kind in _KINDS):
        said = "the compiled kernel neither reads nor writes shared memory"
        yield Signal(Layer.PTX, "no_shared_memory", False, Grade.CERTAIN, said)


def _inspect_counters(kernel: LabelledKernel, _source: SourceKernel | None) -> Iterator[Signal]:
    values = kernel.summary.values
    own = [rule for rule in kernel.summary.rules if rule.name in _OWN_RULES and rule.kind == _BETTER]
    for rule in own:
        yield signal_counter(rule.name, f"Nsight Compute's own rule: {rule.text}", supports=True)
    whole, wavefronts = values.get(_COUNTER), values.get("shared_wavefronts")
    # For loads and stores alone: atomics may have more.
    conflicts = sum(values.get(name, 0.0) for name in _PARTS) if whole is None else whole
    if own or (whole is None and conflicts <= 0):
        return
    if conflicts <= 0:
        yield signal_counter(_COUNTER, "no bank conflict was counted", supports=False)
    elif wavefronts:
        share = conflicts / wavefronts
        least = "" if whole is not None else "at least "
        said = f"{least}{conflicts:,.0f} bank conflicts in {wavefronts:,.0f} wavefronts of shared memory, {share:.1%}"
        if whole is not None or share >= MUCH:
            yield signal_counter(_COUNTER, said, supports=share >= MUCH)
    else:
        said = f"{conflicts:,.0f} bank conflicts; how many wavefronts there were was not measured"
        yield Signal(Layer.NCU, _COUNTER, True, Grade.HINT, said)


DIAGNOSIS = DiagnosisRule(
    name="shared_memory_bank_conflicts",
    title="Bank conflicts in shared memory",
    told_by=frozenset({Layer.SOURCE, Layer.NCU}),
    decides=Preset("shared", "how many wavefronts of shared memory are conflicts", (_COUNTER, "shared_wavefronts")),
    findings={"possible_shared_memory_bank_conflict": Weight(Grade.CERTAIN)},
    inspect_source=_inspect_source,
    inspect_ptx=_inspect_ptx,
    inspect_counters=_inspect_counters,
)
