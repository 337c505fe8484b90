"""Check a candidate before it is timed. Each gate compares the two arms and describes the difference.

Gates run in the order of `Gate`; the first failure ends the trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

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

Facts = TypeVar("Facts")
_LATER = frozenset({CaptureChange.RECOMPILE, CaptureChange.CUDAGRAPH_SKIP})
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
    for name, fault, describe in _check_each(seen):
        yield GateResult(name, not fault, fault or describe())
        if fault:
            return
    yield GateResult(Gate.DISTRIBUTED, None, "one process: nothing to agree on")


def _check_each(seen: Comparison) -> Iterator[tuple[Gate, str, Callable[[], str]]]:
    """Yield each gate with its fault, empty if there is none, and with the line to show if it is passed."""
    old, new, judged = seen.baseline, seen.candidate, seen.judged
    yield Gate.PLAN, find_plan_fault(seen.wanted, new.graphs, new.failures), lambda: describe_plan(seen.wanted)
    changes = find_regressions(old.capture, new.capture)
    early, late = (
        "; ".join(f"{change.kind}: {change.detail}" for change in changes if (change.kind in _LATER) is later)
        for later in (False, True)
    )
    yield Gate.CAPTURE, early, lambda: describe_both(count_graphs, old.capture, new.capture)
    yield Gate.NUMERICS, "; ".join(describe_differences(judged.values)), lambda: describe_numerics(judged)
    placed = f"{judged.placed} outputs and gradients have the baseline's layout"
    yield Gate.STRIDES, "; ".join(describe_differences(judged.forms)), lambda: placed
    slower = "; ".join(map(str, find_unexpected_dispatch(old.kernels, new.kernels)))
    yield Gate.KERNELS, slower, lambda: describe_kernels(old.kernels, new.kernels)
    yield Gate.RECOMPILES, late, lambda: describe_both(count_recompiles, old.capture, new.capture)
    yield Gate.MEMORY, _check_memory(seen), lambda: describe_both(format_memory, old.memory, new.memory)


def find_plan_fault(wanted: Sequence[Candidate], graphs: Sequence[MadeGraph], failures: Sequence[str]) -> str:
    """Return the `wanted` candidates that are missing in an arm's graphs, and why; empty if all were applied."""
    made = {replace(candidate, predicted_seconds=None) for graph in graphs for candidate in graph.applied}
    missing = [candidate for candidate in wanted if replace(candidate, predicted_seconds=None) not in made]
    if not missing and not failures:
        return ""
    refused = [reason for graph in graphs for reason in graph.refused]
    why = "; ".join((*failures, *refused)) or "no graph has its signature"
    return f"{missing[0].rewrite} was not made: {why}" if missing else why


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


def describe_both(describe: Callable[[Facts], str], baseline: Facts, candidate: Facts) -> str:
    """Return the description of the candidate's facts, and of the baseline's if it is another."""
    theirs, ours = describe(baseline), describe(candidate)
    return f"{ours}, as the baseline" if ours == theirs else f"{ours}; the baseline: {theirs}"


def describe_numerics(found: Judged) -> str:
    """Return how many results were compared, and with what."""
    against = "float64" if found.exact else "the baseline, as the program does not run in float64"
    against = f"eager and {against}" if found.eager else against
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


def count_graphs(facts: CaptureFacts) -> str:
    """Return the number of graphs, graph breaks and guards."""
    guards = sum(len(frame.guards) for frame in facts.frames)
    counts = {"graphs": facts.graphs, "graph breaks": len(facts.breaks), "guards": guards}
    untold = {"graphs": "compilations"}
    return ", ".join(
        f"{name} not told" if untold.get(name, name) in facts.untold else f"{name} {count}"
        for name, count in counts.items()
    )


def count_recompiles(facts: CaptureFacts) -> str:
    """Return the number of recompiled frames and skipped CUDA graphs."""
    recompiles = "not told" if "compilations" in facts.untold else len(facts.recompiles)
    return f"recompiles {recompiles}, CUDA-graph skips {facts.cudagraph_skips} in {facts.steps} steps"


def format_memory(seen: MemoryRecord) -> str:
    """Return the peak memory, in bytes."""
    device = "" if seen.device is None else f", on the device {seen.device.peak_bytes} bytes"
    return f"peak on the host {seen.host.peak_bytes} bytes{device}"
