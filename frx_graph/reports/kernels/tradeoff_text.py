"""Describe objections to a verdict, each in a sentence."""

from __future__ import annotations

from frx_graph.analyzers.comparison.matching import Change, Winner
from frx_graph.analyzers.comparison.tradeoffs import Kind, Tradeoff
from frx_graph.evidence.kernel_signature import kernel_signature
from frx_graph.reports.kernels.compare_parts import ChangePart
from frx_graph.reports.render.quantities import quantity
from frx_graph.support.plain_text import one_line

_NAME = 60
_NAMED = 5


def tradeoff_text(found: Tradeoff) -> str:
    """Return a sentence with the numbers of A and B in this order. Names are printable, and cut."""
    side = {Winner.A: "A", Winner.B: "B"}.get(found.winner, "neither")
    kernel = (
        "" if found.kernel_a is None or found.kernel_b is None else f" of {pair_name(found.kernel_a, found.kernel_b)}"
    )
    numbers = "; ".join(change_text(change) for change in found.changes)
    better = "equal" if found.winner is Winner.TIE else f"{side} better"
    gpus = " and ".join(", ".join(map(_name, names)) for names in (found.only_a, found.only_b))
    texts = {
        Kind.TIME_AGAINST_SCORES: f"Time says {better}, the scores do not ({numbers}): the clock is right, and what is "
        "scored matters less here",
        Kind.DIMENSIONS: f"Not all dimensions have the same winner ({numbers})",
        Kind.REGISTERS_AGAINST_OCCUPANCY: f"{side} needs fewer registers, yet reaches less occupancy ({numbers})"
        f"{kernel}",
        Kind.SPILLS_AGAINST_OCCUPANCY: f"{side} spills less, and reaches less occupancy for it ({numbers}){kernel}",
        Kind.OCCUPANCY_SHIFT: f"{side} has much more occupancy ({numbers}){kernel}: only time tells whether that helps",
        Kind.SLOWER_KERNELS: f"{side} is faster in one kernel, and not over all ({numbers}){kernel}",
        Kind.CLOCKS: f"{side} was measured at a higher clock ({numbers}){kernel}: times do not compare as they are",
        Kind.NOT_MATCHED: f"Kernels without a counterpart: {_only('A', found.only_a)}; {_only('B', found.only_b)}",
        Kind.OTHER_NAMES: f"Names differ, and each side has this kernel alone:{kernel.removeprefix(' of')}",
        Kind.LAUNCHES: f"Launched more often on one side ({numbers}){kernel}",
        Kind.GPUS: f"Measured on different GPUs: {gpus}",
    }
    return texts[found.kind]


def change_text(change: Change | ChangePart) -> str:
    """`DRAM throughput 40.0 % -> 92.0 %`."""
    return f"{change.title} {quantity(change.a, change.unit)} -> {quantity(change.b, change.unit)}"


def pair_name(a: str, b: str) -> str:
    """One name where both have it, else what is short of each: the function and its template arguments."""
    return _name(a) if a == b else f"{_short(a)} -> {_short(b)}"


def _short(name: str) -> str:
    found = kernel_signature(name)
    arguments = ", ".join(argument or "?" for argument in found.arguments or ())
    return one_line(f"{found.function}<{arguments}>" if arguments else found.function, _NAME // 2)


def _only(side: str, names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"only {side} has {', '.join(map(_name, names[:_NAMED])) or 'none'}{more}"


def _name(name: str) -> str:
    return one_line(name, _NAME)
