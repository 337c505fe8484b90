"""What a candidate must pass before it is timed: each gate looks at what both arms were seen to do, and says why not.

Their order is that of `GATES`; the first that fails ends a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from frx_graph.capture.capture_changes import CaptureChange, WorseCapture, worse_capture
from frx_graph.measure.memory_use import worse_memory
from frx_graph.measure.operators.unexpected_dispatch import unexpected_dispatch
from frx_graph.records import Candidate
from frx_graph.trials import gate_evidence
from frx_graph.trials.arm_messages import Examined, Judged, MadeGraph
from frx_graph.trials.numerics import describe
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.trial_run import Gate, GateResult


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two arms were seen to do with one workload."""

    baseline: Examined
    candidate: Examined
    judged: Judged
    wanted: tuple[Candidate, ...]
    """What was to be made of the program."""
    policy: TrialPolicy


def examine_gates(seen: Comparison) -> Iterator[GateResult]:
    """The gates between the process and the throughput, up to the first that is not passed."""
    for name, fault, evidence in _CHECKS:
        found = fault(seen)
        yield GateResult(name, not found, found or evidence(seen))
        if found:
            return
    yield GateResult(Gate.DISTRIBUTED, None, "one process: nothing to agree on")


def plan_fault(wanted: Sequence[Candidate], graphs: Sequence[MadeGraph], failures: Sequence[str]) -> str:
    """What of all that was `wanted` was not made of an arm's graphs, and why; empty where nothing is missing, nor has
    failed."""
    made = {_named(candidate) for graph in graphs for candidate in graph.applied}
    missing = [candidate for candidate in wanted if _named(candidate) not in made]
    if not missing and not failures:
        return ""
    refused = [reason for graph in graphs for reason in graph.refused]
    why = "; ".join((*failures, *refused)) or "no graph has its signature"
    return f"{missing[0].rewrite} was not made: {why}" if missing else why


def _plan(seen: Comparison) -> str:
    return plan_fault(seen.wanted, seen.candidate.graphs, seen.candidate.failures)


def _capture(seen: Comparison) -> str:
    return _listed([change for change in _changes(seen) if change.kind not in _LATER])


def _recompiles(seen: Comparison) -> str:
    return _listed([change for change in _changes(seen) if change.kind in _LATER])


def _changes(seen: Comparison) -> tuple[WorseCapture, ...]:
    return worse_capture(seen.baseline.capture, seen.candidate.capture)


def _listed(changes: list[WorseCapture]) -> str:
    return "; ".join(f"{change.kind}: {change.detail}" for change in changes)


def _numerics(seen: Comparison) -> str:
    return "; ".join(describe(seen.judged.values))


def _strides(seen: Comparison) -> str:
    return "; ".join(describe(seen.judged.forms))


def _kernels(seen: Comparison) -> str:
    return "; ".join(map(str, unexpected_dispatch(seen.baseline.kernels, seen.candidate.kernels)))


def _memory(seen: Comparison) -> str:
    found = worse_memory(seen.baseline.memory, seen.candidate.memory, seen.policy.memory_headroom)
    return "; ".join(
        f"{one.fault} ({one.place}): {_mebibytes(one.candidate_bytes)}, the baseline's {_mebibytes(one.baseline_bytes)}"
        for one in found
    )


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


_LATER = frozenset({CaptureChange.RECOMPILE, CaptureChange.CUDAGRAPH_SKIP})

_Told = Callable[[Comparison], str]
_CHECKS: tuple[tuple[Gate, _Told, _Told], ...] = (
    (Gate.PLAN, _plan, lambda seen: gate_evidence.made(seen.wanted)),
    (Gate.CAPTURE, _capture, lambda seen: gate_evidence.captured(seen.baseline.capture, seen.candidate.capture)),
    (Gate.NUMERICS, _numerics, lambda seen: gate_evidence.judged(seen.judged)),
    (Gate.STRIDES, _strides, lambda seen: gate_evidence.placed(seen.judged)),
    (Gate.KERNELS, _kernels, lambda seen: gate_evidence.kernels(seen.baseline.kernels, seen.candidate.kernels)),
    (
        Gate.RECOMPILES,
        _recompiles,
        lambda seen: gate_evidence.recompiled(seen.baseline.capture, seen.candidate.capture),
    ),
    (Gate.MEMORY, _memory, lambda seen: gate_evidence.remembered(seen.baseline.memory, seen.candidate.memory)),
)
"""What is worse, where anything is, and what was seen where nothing is."""


def _named(candidate: Candidate) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
    return (candidate.graph_id, candidate.rewrite, candidate.nodes, candidate.choices)
