"""Check a candidate before it is timed. Each gate compares the two arms and describes the difference.

Gates run in the order of `Gate`; the first failure ends the trial.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from frx_graph.capture.capture_changes import CaptureChange, find_regressions
from frx_graph.capture.capture_facts import CaptureFacts
from frx_graph.measure.memory_use import MemoryRecord, compare_memory
from frx_graph.measure.operators.kernel_identities import Kernel, KernelIdentities, Source
from frx_graph.measure.operators.unexpected_dispatch import (
    find_unexpected_dispatch,
    list_changed_kernels,
)
from frx_graph.records import Candidate
from frx_graph.trials.arm_messages import Examined, Judged, MadeGraph
from frx_graph.trials.numerics import describe_differences
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.trial_run import Gate, GateResult

Facts = TypeVar("Facts")
_LATER = frozenset({CaptureChange.RECOMPILE, CaptureChange.CUDAGRAPH_SKIP})
_NAMED_FIRST = (Source.DEVICE, Source.ONEDNN, Source.GENERATED, Source.ATEN)
"""Kernels that compute come before those that call them."""
_KINDS_SHOWN = 2
"""Kinds of kernels in the summary, which is one line of a terminal."""
_KINDS = {Source.DEVICE: "device kernel", Source.GENERATED: "generated loop", Source.ATEN: "ATen call"}
"""Names of kernels; oneDNN has its own kinds."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The observations of two arms with one workload."""

    captures: tuple[CaptureFacts, CaptureFacts]
    """Of the baseline, and of the candidate."""
    baseline: Examined
    candidate: Examined
    judged: Judged
    wanted: tuple[Candidate, ...]
    policy: TrialPolicy
    freezes: bool = False
    """True if the candidate makes weights constants."""


def examine_gates(seen: Comparison) -> Iterator[GateResult]:
    """Yield the gates between PROCESS and THROUGHPUT, up to the first that fails."""
    for name, fault, describe in _check_each(seen):
        if fault:
            first, more, _ = fault.partition("; ")
            yield GateResult(name, False, fault, f"{first}; and more" if more else "")
            return
        yield GateResult(name, True, *describe())
    yield GateResult(Gate.DISTRIBUTED, None, "one process: nothing to agree on")


def _check_each(seen: Comparison) -> Iterator[tuple[Gate, str, Callable[[], tuple[str, ...]]]]:
    """Yield each gate with its fault, empty if there is none, and with what to show if it is passed: the detail, and
    its summary if the detail is long."""
    old, new, judged = seen.baseline, seen.candidate, seen.judged
    yield Gate.PLAN, find_plan_fault(seen.wanted, new.graphs, new.failures), lambda: (describe_plan(seen.wanted),)
    changes = find_regressions(*seen.captures)
    early, late = (
        "; ".join(f"{change.kind}: {change.detail}" for change in changes if (change.kind in _LATER) is later)
        for later in (False, True)
    )
    yield (
        Gate.CAPTURE,
        early,
        lambda: (
            describe_both(count_graphs, *seen.captures),
            summarize_both(tally_graphs, *seen.captures),
        ),
    )
    numerics = "; ".join(describe_differences(judged.values))
    yield Gate.NUMERICS, numerics, lambda: (describe_numerics(judged), summarize_numerics(judged))
    placed = f"{judged.placed} results have the baseline's or eager's layout"
    yield Gate.STRIDES, "; ".join(describe_differences(judged.forms)), lambda: (placed,)
    slower = "; ".join(map(str, find_unexpected_dispatch(old.kernels, new.kernels)))
    yield (
        Gate.KERNELS,
        slower,
        lambda: (describe_kernels(old.kernels, new.kernels), summarize_kernels(old.kernels, new.kernels)),
    )
    yield (
        Gate.RECOMPILES,
        late,
        lambda: (
            describe_both(count_recompiles, *seen.captures),
            summarize_both(tally_recompiles, *seen.captures),
        ),
    )
    yield (
        Gate.MEMORY,
        _check_memory(seen),
        lambda: (
            describe_both(format_memory, old.memory, new.memory),
            f"peak in MiB: {summarize_both(tally_memory, old.memory, new.memory)}",
        ),
    )


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
    copies = seen.policy.weight_copies if seen.freezes else 0.0
    found = compare_memory(seen.baseline.memory, seen.candidate.memory, seen.policy.memory_headroom, copies)
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


def summarize_both(tally: Callable[[Facts], Mapping[str, str]], baseline: Facts, candidate: Facts) -> str:
    """Return the candidate's counts by name, and the baseline's if they differ."""
    theirs, ours = tally(baseline), tally(candidate)
    text = ", ".join(f"{name} {value}" for name, value in ours.items())
    return f"{text}, as the baseline" if ours == theirs else f"{text} (baseline {', '.join(theirs.values())})"


def describe_numerics(found: Judged) -> str:
    """Return how many results were compared, and with what."""
    against = "float64" if found.exact else "the baseline, as the program does not run in float64"
    against = f"eager and {against}" if found.eager else f"{against}, and not eager, which fails or does not repeat"
    largest = "" if found.share is None else f"; the largest error is {100 * found.share:.3g} % of what is allowed"
    return f"{found.compared} results against {against}{largest}"


def summarize_numerics(found: Judged) -> str:
    """Return the number of compared results, and the used fraction of the allowed error."""
    share = "" if found.share is None else f": {100 * found.share:.3g} % of the limit"
    against = "float64" if found.exact else "the baseline"
    return f"{found.compared} results beside {'eager, ' if found.eager else ''}{against}{share}"


def describe_kernels(baseline: KernelIdentities, candidate: KernelIdentities) -> str:
    """Return all kernels that run more or less often in a step than in the baseline."""
    untold = sorted({*baseline.untold, *candidate.untold})
    changes = sorted(list_changed_kernels(baseline, candidate), key=lambda one: _NAMED_FIRST.index(one.kernel.source))
    told = sum(entry.kernel.source not in untold for entry in baseline.kernels)
    parts = [f"{len(changes)} changed, of {told} that the baseline has", *map(str, changes)]
    return "; ".join((*parts, *(f"{source} not told" for source in untold)))


def summarize_kernels(baseline: KernelIdentities, candidate: KernelIdentities) -> str:
    """Return the number of changed kernels, and the kinds that changed most, as runs in a step. Operators that call
    kernels are counted only if no kernel changed."""
    changes = list_changed_kernels(baseline, candidate)
    runs: defaultdict[str, list[int]] = defaultdict(list)
    computing = [one for one in changes if one.kernel.source is not Source.ATEN]
    for change in computing or changes:
        runs[_name_kind(change.kernel)].append(change.after - change.before)
    most = sorted(runs.items(), key=lambda item: -max(abs(sum(item[1])), _count_replaced(item[1])))[:_KINDS_SHOWN]
    kinds = ", ".join(_describe_runs(kind, deltas) for kind, deltas in most)
    untold = "".join(f", {source} not told" for source in sorted({*baseline.untold, *candidate.untold}))
    return f"{len(changes)} changed{f': {kinds}' if kinds else ''}{untold}"


def _name_kind(kernel: Kernel) -> str:
    return _KINDS.get(kernel.source) or kernel.kind.replace("_", " ") or "oneDNN primitive"


def _count_replaced(deltas: Sequence[int]) -> int:
    return min(sum(n for n in deltas if n > 0), -sum(n for n in deltas if n < 0))


def _describe_runs(kind: str, deltas: Sequence[int]) -> str:
    more = sum(deltas)
    count, how = (abs(more), "more" if more > 0 else "fewer") if more else (_count_replaced(deltas), "other")
    return f"{count} {how} {kind}{'s' * (count != 1)}"


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


_UNTOLD = "unknown"


def tally_graphs(facts: CaptureFacts) -> dict[str, str]:
    """Return the number of graphs, graph breaks and guards, by name."""
    guards = sum(len(frame.guards) for frame in facts.frames)
    return {
        "graphs": _UNTOLD if "compilations" in facts.untold else str(facts.graphs),
        "breaks": _UNTOLD if "graph breaks" in facts.untold else str(len(facts.breaks)),
        "guards": _UNTOLD if "guards" in facts.untold else str(guards),
    }


def tally_recompiles(facts: CaptureFacts) -> dict[str, str]:
    """Return the number of recompiled frames and skipped CUDA graphs, by name."""
    recompiles = _UNTOLD if "compilations" in facts.untold else str(len(facts.recompiles))
    return {"recompiles": recompiles, "CUDA-graph skips": str(facts.cudagraph_skips)}


def tally_memory(seen: MemoryRecord) -> dict[str, str]:
    """Return the peak memory in MiB, by place."""
    peaks = {"host": seen.host} if seen.device is None else {"host": seen.host, "device": seen.device}
    return {place: f"{use.peak_bytes / 2**20:.1f}" for place, use in peaks.items()}
