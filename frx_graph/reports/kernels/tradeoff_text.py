"""Describe objections to a verdict, each in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frx_graph.analyzers.comparison.matching import Change, Winner
from frx_graph.analyzers.comparison.tradeoffs import Kind, Tradeoff
from frx_graph.evidence.kernel_signature import parse_kernel_signature
from frx_graph.reports.render.quantities import format_quantity
from frx_graph.support.plain_text import clean_line

if TYPE_CHECKING:
    from frx_graph.reports.kernels.compare_document import ChangePart

_NAME = 60
_NAMED = 5


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
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"only {side} has {', '.join(map(_cut_name, names[:_NAMED])) or 'none'}{more}"


def _cut_name(name: str) -> str:
    return clean_line(name, _NAME)
