"""Describe a comparison of two programs in sentences: what is unknown, what to run next, objections to the verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frx_graph.analyzers.comparison.comparison import Comparison
from frx_graph.analyzers.comparison.matching import Change, Winner
from frx_graph.analyzers.comparison.tradeoffs import Kind, Tradeoff
from frx_graph.analyzers.layers import NcuLayer
from frx_graph.evidence.kernel_signature import parse_kernel_signature
from frx_graph.reports.render.quantities import format_quantity
from frx_graph.support.plain_text import clean_line

if TYPE_CHECKING:
    from frx_graph.reports.kernels.compare_document import ChangePart

_NAME = 60
_UNMATCHED = 5
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


def describe_tradeoff(found: Tradeoff) -> str:
    """Return a sentence with the numbers of A and B in this order. Names are printable and shortened."""
    side = {Winner.A: "A", Winner.B: "B"}.get(found.winner, "neither")
    kernel = (
        "" if found.kernel_a is None or found.kernel_b is None else f" of {format_pair(found.kernel_a, found.kernel_b)}"
    )
    numbers = "; ".join(format_change(change) for change in found.changes)
    better = "equal" if found.winner is Winner.TIE else f"{side} better"
    gpus = " and ".join(", ".join(map(_cut_name, names)) for names in (found.only_a, found.only_b))
    texts = {
        Kind.TIME_AGAINST_SCORES: f"Time says {better}, the scores disagree ({numbers}): trust the time, since "
        "the scored figures matter less here",
        Kind.DIMENSIONS: f"Not all dimensions have the same winner ({numbers})",
        Kind.REGISTERS_AGAINST_OCCUPANCY: f"{side} needs fewer registers, yet reaches less occupancy ({numbers})"
        f"{kernel}",
        Kind.SPILLS_AGAINST_OCCUPANCY: f"{side} spills less, and reaches less occupancy for it ({numbers}){kernel}",
        Kind.OCCUPANCY_SHIFT: f"{side} has much more occupancy ({numbers}){kernel}: only time shows if that helps",
        Kind.SLOWER_KERNELS: f"{side} is faster in one kernel, but not overall ({numbers}){kernel}",
        Kind.CLOCKS: f"{side} was measured at a higher clock ({numbers}){kernel}: times are not directly comparable",
        Kind.NOT_MATCHED: f"Kernels without a counterpart: {_list_unmatched('A', found.only_a)}; "
        f"{_list_unmatched('B', found.only_b)}",
        Kind.OTHER_NAMES: f"Names differ, but each side has only this kernel:{kernel.removeprefix(' of')}",
        Kind.LAUNCHES: f"Launched more often on one side ({numbers}){kernel}",
        Kind.GPUS: f"Measured on different GPUs: {gpus}",
    }
    return texts[found.kind]


def format_change(change: Change | ChangePart) -> str:
    """`DRAM throughput 40.0 % -> 92.0 %`."""
    return f"{change.title} {format_quantity(change.a, change.unit)} -> {format_quantity(change.b, change.unit)}"


def format_pair(a: str, b: str) -> str:
    """Return the common name, else both shortened names: the function and its template arguments."""
    return _cut_name(a) if a == b else f"{_shorten_name(a)} -> {_shorten_name(b)}"


def _shorten_name(name: str) -> str:
    found = parse_kernel_signature(name)
    arguments = ", ".join(argument or "?" for argument in found.arguments or ())
    return clean_line(f"{found.function}<{arguments}>" if arguments else found.function, _NAME // 2)


def _list_unmatched(side: str, names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _UNMATCHED} more" if len(names) > _UNMATCHED else ""
    return f"only {side} has {', '.join(map(_cut_name, names[:_UNMATCHED])) or 'none'}{more}"


def _cut_name(name: str) -> str:
    return clean_line(name, _NAME)
