"""List open questions of a comparison, and the commands that would answer them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.comparison.comparison import Comparison
from frx_graph.analyzers.layers import NcuLayer

_NAMED = {"source": "CUDA source", "ptx": "PTX", "ncu": "Nsight Compute's counters"}


@dataclass(frozen=True, slots=True)
class NextCommand:
    """The user's command, and the words to add to it: for PTX, for PTX of the right GPU if another was assumed, and for
    counters."""

    words: Sequence[str]
    for_ptx: Sequence[str]
    for_gpu: Sequence[str]
    for_ncu: Sequence[Sequence[str]]


def yield_unknowns(found: Comparison) -> Iterator[str]:
    """Yield a sentence for each open question."""
    for layer, name in _NAMED.items():
        if (in_a := getattr(found.a, layer) is not None) is not (getattr(found.b, layer) is not None):
            yield f"{name} of {'A' if in_a else 'B'} alone: not compared"
    if found.ncu is None:
        yield "Time of both: not measured for each side"
    elif found.verdict.time is None:
        yield "Time of both: not measured for all kernels, or no kernel has a counterpart"
    for side, layers in (("A", found.a), ("B", found.b)):
        if layers.ptx is not None and (reason := layers.ptx.not_assembled_because) is not None:
            yield f"Registers and spills of {side}, of which PTX has only virtual ones: {reason}"
        if layers.source is not None and (unread := layers.source.source.unread):
            yield f"Kernels of {side} of which only the name could be read: {', '.join(unread[:5])}"
    missing = [one.name.replace("_", " ") for one in found.scorecard if not one.available]
    if missing:
        yield f"Not scored, without evidence from both sides: {', '.join(missing)}"
    if found.a.ncu is not None and found.b.ncu is not None:
        differ = sorted(_get_metrics(found.a.ncu) ^ _get_metrics(found.b.ncu))
        if differ:
            more = f" and {len(differ) - 8} more" if len(differ) > 8 else ""
            yield f"Measured for one side only: {', '.join(differ[:8])}{more}"


def suggest_commands(found: Comparison, again: NextCommand) -> tuple[str, ...]:
    """Return complete commands, ready to type."""
    hints = []
    if found.ptx is None and again.for_ptx:
        hints.append(f"Registers, spills, instructions: {shlex.join([*again.words, *again.for_ptx])}")
    if found.ptx is not None and again.for_gpu:
        target = found.ptx.target_a
        hints.append(f"Registers of your GPU instead of {target}: {shlex.join([*again.words, *again.for_gpu])}")
    if found.ncu is None:
        commands = [shlex.join([*again.words, *added]) for added in again.for_ncu]
        hints += [f"Time, caches, occupancy, stalls: {command}" for command in commands[:1]]
        hints += [f"The same, measured elsewhere: {command}" for command in commands[1:]]
    return tuple(hints)


def _get_metrics(layer: NcuLayer) -> set[str]:
    return {
        name for kernel in layer.analysis.kernels for name in kernel.summary.values if not name.startswith("stall_")
    }
