"""What a candidate must pass before it is timed: each gate looks at what both arms were seen to do, and says why not.

Their order is that of `GATES`; the first that fails ends a trial.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from frx_graph.capture.capture_changes import CaptureChange, WorseCapture, worse_capture
from frx_graph.evidence.unexpected_dispatch import unexpected_dispatch
from frx_graph.evidence.worse_memory import worse_memory
from frx_graph.records import Candidate
from frx_graph.trials.arm_messages import Examined, Judged
from frx_graph.trials.numerics import describe
from frx_graph.trials.policy import TrialPolicy


class Gate(enum.StrEnum):
    """In the order in which they are passed."""

    PROCESS = "process"
    """The arm ran to its end: it neither crashed, hung, ran out of memory, nor flooded its output."""
    PLAN = "plan"
    """What was to be made of the program was made of it."""
    CAPTURE = "capture"
    """No graph break, graph or guard more."""
    NUMERICS = "numerics"
    STRIDES = "strides"
    """Of outputs and gradients; and who shares memory with whom."""
    KERNELS = "kernels"
    """Nothing left its fast implementation."""
    RECOMPILES = "recompiles"
    """And CUDA graphs that are skipped."""
    MEMORY = "memory"
    DISTRIBUTED = "distributed"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class GateResult:
    """Whether a gate was passed, and what was seen there, in a line. `passed` is None where it says nothing here."""

    name: Gate
    passed: bool | None
    detail: str


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
    for name, check in _CHECKS:
        result = check(seen)
        result = result if isinstance(result, GateResult) else GateResult(name, not result, result or "as before")
        yield result
        if result.passed is False:
            return


def _plan(seen: Comparison) -> str:
    made = {_named(candidate) for graph in seen.candidate.graphs for candidate in graph.applied}
    missing = [candidate for candidate in seen.wanted if _named(candidate) not in made]
    if not missing and not seen.candidate.failures:
        return ""
    refused = [reason for graph in seen.candidate.graphs for reason in graph.refused]
    why = "; ".join((*seen.candidate.failures, *refused)) or "no graph has its signature"
    return f"{missing[0].rewrite} was not made: {why}" if missing else why


def _capture(seen: Comparison) -> str:
    return _listed([change for change in _changes(seen) if change.kind not in _LATER])


def _recompiles(seen: Comparison) -> str:
    return _listed([change for change in _changes(seen) if change.kind in _LATER])


def _changes(seen: Comparison) -> tuple[WorseCapture, ...]:
    return worse_capture(seen.baseline.capture, seen.candidate.capture)


def _listed(changes: list[WorseCapture]) -> str:
    return "; ".join(f"{change.kind}: {change.detail}" for change in changes)


def _numerics(seen: Comparison) -> GateResult:
    judged = seen.judged
    if judged.values:
        return GateResult(Gate.NUMERICS, False, "; ".join(describe(judged.values)))
    against = "float64" if judged.exact else "the baseline, as the program does not run in float64"
    return GateResult(Gate.NUMERICS, True, f"{judged.compared} results against {against}")


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


def _distributed(_seen: Comparison) -> GateResult:
    return GateResult(Gate.DISTRIBUTED, None, "one process: nothing to agree on")


_LATER = frozenset({CaptureChange.RECOMPILE, CaptureChange.CUDAGRAPH_SKIP})

_CHECKS: tuple[tuple[Gate, Callable[[Comparison], GateResult | str]], ...] = (
    (Gate.PLAN, _plan),
    (Gate.CAPTURE, _capture),
    (Gate.NUMERICS, _numerics),
    (Gate.STRIDES, _strides),
    (Gate.KERNELS, _kernels),
    (Gate.RECOMPILES, _recompiles),
    (Gate.MEMORY, _memory),
    (Gate.DISTRIBUTED, _distributed),
)


def _named(candidate: Candidate) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
    return (candidate.graph_id, candidate.rewrite, candidate.nodes, candidate.choices)
