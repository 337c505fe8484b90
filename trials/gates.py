"""Check a candidate before it is timed. Each gate compares the two arms and describes the difference.

Gates run in the order of `Gate`; the first failure ends the trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from frx_graph.capture.capture_changes import CaptureChange, find_regressions
from frx_graph.capture.capture_facts import CaptureFacts
from frx_graph.measure.memory_use import MemoryRecord, compare_memory
from frx_graph.measure.operators.kernel_identities import KernelIdentities, Source
from frx_graph.measure.operators.unexpected_dispatch import find_unexpected_dispatch, list_changed_kernels
from frx_graph.records import Candidate
from frx_graph.trials.arm_messages import Examined, Judged, MadeGraph
from frx_graph.trials.numerics import describe_differences
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.trial_run import Gate, GateResult

_MOST_CHANGES = 12
"""Most kernels that are named. If a compiler changes the layout of a whole network, hundreds change."""
_NAMED_FIRST = (Source.DEVICE, Source.ONEDNN, Source.GENERATED, Source.ATEN)
"""Kernels that compute come before those that call them."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The observations of two arms with one workload."""

    baseline: Examined
    candidate: Examined
    judged: Judged
    wanted: tuple[Candidate, ...]
    policy: TrialPolicy


def examine_gates(seen: Comparison) -> Iterator[GateResult]:
    """Yield the gates between PROCESS and THROUGHPUT, up to the first that fails."""
    for name, fault, evidence in _CHECKS:
        found = fault(seen)
        yield GateResult(name, not found, found or evidence(seen))
        if found:
            return
    yield GateResult(Gate.DISTRIBUTED, None, "one process: nothing to agree on")


def find_plan_fault(wanted: Sequence[Candidate], graphs: Sequence[MadeGraph], failures: Sequence[str]) -> str:
    """Return the `wanted` candidates that are missing in an arm's graphs, and why; empty if all were applied."""
    made = {replace(candidate, predicted_seconds=None) for graph in graphs for candidate in graph.applied}
    missing = [candidate for candidate in wanted if replace(candidate, predicted_seconds=None) not in made]
    if not missing and not failures:
        return ""
    refused = [reason for graph in graphs for reason in graph.refused]
    why = "; ".join((*failures, *refused)) or "no graph has its signature"
    return f"{missing[0].rewrite} was not made: {why}" if missing else why


def _check_capture(seen: Comparison, *, later: bool) -> str:
    found = find_regressions(seen.baseline.capture, seen.candidate.capture)
    return "; ".join(f"{change.kind}: {change.detail}" for change in found if (change.kind in _LATER) is later)


def _check_memory(seen: Comparison) -> str:
    found = compare_memory(seen.baseline.memory, seen.candidate.memory, seen.policy.memory_headroom)
    return "; ".join(
        f"{one.fault} ({one.place}): {one.candidate_bytes / 2**20:.1f} MiB, the baseline's "
        f"{one.baseline_bytes / 2**20:.1f} MiB"
        for one in found
    )


def describe_plan(wanted: Sequence[Candidate]) -> str:
    """Return how often each rewrite was made."""
    counts = Counter(candidate.rewrite for candidate in wanted)
    return f"made: {', '.join(f'{count} × {name}' for name, count in counts.items())}" if counts else "nothing to make"


def describe_capture(baseline: CaptureFacts, candidate: CaptureFacts) -> str:
    """Return the number of graphs, graph breaks and guards of both arms."""
    return _compare_texts(_count_graphs(baseline), _count_graphs(candidate))


def describe_recompiles(baseline: CaptureFacts, candidate: CaptureFacts) -> str:
    """Return the number of recompiled frames and skipped CUDA graphs of both arms."""
    return _compare_texts(_count_recompiles(baseline), _count_recompiles(candidate))


def describe_numerics(found: Judged) -> str:
    """Return how many results were compared, and with what."""
    against = "float64" if found.exact else "the baseline, as the program does not run in float64"
    largest = "" if found.share is None else f"; the largest error is {100 * found.share:.3g} % of what is allowed"
    return f"{found.compared} results against {against}{largest}"


def describe_kernels(baseline: KernelIdentities, candidate: KernelIdentities) -> str:
    """Return the kernels that run more or less often in a step than in the baseline."""
    untold = sorted({*baseline.untold, *candidate.untold})
    changes = sorted(list_changed_kernels(baseline, candidate), key=lambda one: _NAMED_FIRST.index(one.kernel.source))
    told = sum(entry.kernel.source not in untold for entry in baseline.kernels)
    parts = [f"{len(changes)} changed, of {told} that the baseline has", *map(str, changes[:_MOST_CHANGES])]
    if len(changes) > _MOST_CHANGES:
        parts.append(f"and {len(changes) - _MOST_CHANGES} more")
    return "; ".join((*parts, *(f"{source} not told" for source in untold)))


def describe_memory(baseline: MemoryRecord, candidate: MemoryRecord) -> str:
    """Return the peak memory of both arms, in bytes."""
    return _compare_texts(_format_memory(baseline), _format_memory(candidate))


def _count_graphs(facts: CaptureFacts) -> str:
    guards = sum(len(frame.guards) for frame in facts.frames)
    counts = {"graphs": facts.graphs, "graph breaks": len(facts.breaks), "guards": guards}
    untold = {"graphs": "compilations"}
    return ", ".join(
        f"{name} not told" if untold.get(name, name) in facts.untold else f"{name} {count}"
        for name, count in counts.items()
    )


def _count_recompiles(facts: CaptureFacts) -> str:
    recompiles = "not told" if "compilations" in facts.untold else len(facts.recompiles)
    return f"recompiles {recompiles}, CUDA-graph skips {facts.cudagraph_skips} in {facts.steps} steps"


def _format_memory(seen: MemoryRecord) -> str:
    device = "" if seen.device is None else f", on the device {seen.device.peak_bytes} bytes"
    return f"peak on the host {seen.host.peak_bytes} bytes{device}"


def _compare_texts(baseline: str, candidate: str) -> str:
    return f"{candidate}, as the baseline" if candidate == baseline else f"{candidate}; the baseline: {baseline}"


_LATER = frozenset({CaptureChange.RECOMPILE, CaptureChange.CUDAGRAPH_SKIP})

_Describe = Callable[[Comparison], str]
_CHECKS: tuple[tuple[Gate, _Describe, _Describe], ...] = (
    (
        Gate.PLAN,
        lambda seen: find_plan_fault(seen.wanted, seen.candidate.graphs, seen.candidate.failures),
        lambda seen: describe_plan(seen.wanted),
    ),
    (
        Gate.CAPTURE,
        lambda seen: _check_capture(seen, later=False),
        lambda seen: describe_capture(seen.baseline.capture, seen.candidate.capture),
    ),
    (
        Gate.NUMERICS,
        lambda seen: "; ".join(describe_differences(seen.judged.values)),
        lambda seen: describe_numerics(seen.judged),
    ),
    (
        Gate.STRIDES,
        lambda seen: "; ".join(describe_differences(seen.judged.forms)),
        lambda seen: f"{seen.judged.placed} outputs and gradients have the baseline's layout",
    ),
    (
        Gate.KERNELS,
        lambda seen: "; ".join(map(str, find_unexpected_dispatch(seen.baseline.kernels, seen.candidate.kernels))),
        lambda seen: describe_kernels(seen.baseline.kernels, seen.candidate.kernels),
    ),
    (
        Gate.RECOMPILES,
        lambda seen: _check_capture(seen, later=True),
        lambda seen: describe_recompiles(seen.baseline.capture, seen.candidate.capture),
    ),
    (Gate.MEMORY, _check_memory, lambda seen: describe_memory(seen.baseline.memory, seen.candidate.memory)),
)
"""For each gate: the fault, empty if there is none, and the line to show if it is passed."""
