"""What was seen at a gate that was passed, in a line: of both arms, where that can be said in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from frx_graph.capture.capture_facts import CaptureFacts
from frx_graph.measure.memory_use import MemoryRecord
from frx_graph.measure.operators.kernel_identities import KernelIdentities, Source
from frx_graph.measure.operators.unexpected_dispatch import changed_kernels
from frx_graph.records import Candidate
from frx_graph.trials.arm_messages import Judged

_MOST_CHANGES = 12
"""Kernels that are named. Where a compiler lays out a whole network otherwise, hundreds change."""
_NAMED_FIRST = (Source.DEVICE, Source.ONEDNN, Source.GENERATED, Source.ATEN)
"""What computes, before what asks for it."""


def made(wanted: Sequence[Candidate]) -> str:
    """Of what was to be made of a program."""
    counts = Counter(candidate.rewrite for candidate in wanted)
    return f"made: {', '.join(f'{count} × {name}' for name, count in counts.items())}" if counts else "nothing to make"


def captured(baseline: CaptureFacts, candidate: CaptureFacts) -> str:
    """How many graphs, breaks and guards there are."""
    return _beside(_captured(baseline), _captured(candidate))


def recompiled(baseline: CaptureFacts, candidate: CaptureFacts) -> str:
    """How often frames were compiled once more, and CUDA graphs skipped."""
    return _beside(_recompiled(baseline), _recompiled(candidate))


def judged(found: Judged) -> str:
    """How many results were compared, and with what."""
    against = "float64" if found.exact else "the baseline, as the program does not run in float64"
    largest = "" if found.share is None else f"; the largest error is {100 * found.share:.3g} % of what is allowed"
    return f"{found.compared} results against {against}{largest}"


def placed(found: Judged) -> str:
    """How many outputs and gradients lie as they should."""
    return f"{found.placed} outputs and gradients lie as the baseline's"


def kernels(baseline: KernelIdentities, candidate: KernelIdentities) -> str:
    """Which kernels run more or less often, from how often to how often in a step."""
    untold = sorted({*baseline.untold, *candidate.untold})
    changes = sorted(changed_kernels(baseline, candidate), key=lambda one: _NAMED_FIRST.index(one.kernel.source))
    told = sum(entry.kernel.source not in untold for entry in baseline.kernels)
    parts = [f"{len(changes)} changed, of {told} that the baseline has", *map(str, changes[:_MOST_CHANGES])]
    if len(changes) > _MOST_CHANGES:
        parts.append(f"and {len(changes) - _MOST_CHANGES} more")
    return "; ".join((*parts, *(f"{source} not told" for source in untold)))


def remembered(baseline: MemoryRecord, candidate: MemoryRecord) -> str:
    """The peaks, in bytes."""
    return _beside(_remembered(baseline), _remembered(candidate))


def _captured(facts: CaptureFacts) -> str:
    guards = sum(len(frame.guards) for frame in facts.frames)
    counts = {"graphs": facts.graphs, "graph breaks": len(facts.breaks), "guards": guards}
    untold = {"graphs": "compilations"}
    return ", ".join(
        f"{name} not told" if untold.get(name, name) in facts.untold else f"{name} {count}"
        for name, count in counts.items()
    )


def _recompiled(facts: CaptureFacts) -> str:
    recompiles = "not told" if "compilations" in facts.untold else len(facts.recompiles)
    return f"recompiles {recompiles}, CUDA-graph skips {facts.cudagraph_skips} in {facts.steps} steps"


def _remembered(seen: MemoryRecord) -> str:
    device = "" if seen.device is None else f", on the device {seen.device.peak_bytes} bytes"
    return f"peak on the host {seen.host.peak_bytes} bytes{device}"


def _beside(baseline: str, candidate: str) -> str:
    return f"{candidate}, as the baseline" if candidate == baseline else f"{candidate}; the baseline: {baseline}"
