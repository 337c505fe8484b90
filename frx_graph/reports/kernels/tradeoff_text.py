"""What speaks against a verdict, in a sentence."""

from __future__ import annotations

from frx_graph.analyzers.comparison.matching import Change, Winner
from frx_graph.analyzers.comparison.tradeoffs import Kind, Tradeoff
from frx_graph.evidence.kernel_signature import kernel_signature
from frx_graph.reports.render.plain_text import one_line
from frx_graph.reports.render.quantities import UNKNOWN, byte_count, percent, rate, seconds

_NAME = 60
_NAMED = 5


def tradeoff_text(found: Tradeoff) -> str:
    """With the numbers of A and B in this order. Names are printable, and cut."""
    side = {Winner.A: "A", Winner.B: "B"}.get(found.winner, "neither")
    kernel = (
        "" if found.kernel_a is None or found.kernel_b is None else f" of {pair_name(found.kernel_a, found.kernel_b)}"
    )
    numbers = "; ".join(change_text(change) for change in found.changes)
    match found.kind:
        case Kind.TIME_AGAINST_SCORES:
            other = "equal" if found.winner is Winner.TIE else f"{side} better"
            why = "the clock is right, and what is scored matters less here"
            return f"Time says {other}, the scores do not ({numbers}): {why}"
        case Kind.DIMENSIONS:
            return f"Not all dimensions have the same winner ({numbers})"
        case Kind.REGISTERS_AGAINST_OCCUPANCY:
            return f"{side} needs fewer registers, yet reaches less occupancy ({numbers}){kernel}"
        case Kind.SPILLS_AGAINST_OCCUPANCY:
            return f"{side} spills less, and reaches less occupancy for it ({numbers}){kernel}"
        case Kind.OCCUPANCY_SHIFT:
            return f"{side} has much more occupancy ({numbers}){kernel}: only time tells whether that helps"
        case Kind.SLOWER_KERNELS:
            return f"{side} is faster in one kernel, and not over all ({numbers}){kernel}"
        case Kind.CLOCKS:
            return f"{side} was measured at a higher clock ({numbers}){kernel}: times do not compare as they are"
        case Kind.NOT_MATCHED:
            return f"Kernels without a counterpart: {_only('A', found.only_a)}; {_only('B', found.only_b)}"
        case Kind.OTHER_NAMES:
            return f"Names differ, and each side has this kernel alone:{kernel.removeprefix(' of')}"
        case Kind.LAUNCHES:
            return f"Launched more often on one side ({numbers}){kernel}"
        case Kind.GPUS:
            gpus = (", ".join(map(_name, names)) for names in (found.only_a, found.only_b))
            return f"Measured on different GPUs: {' and '.join(gpus)}"


def change_text(change: Change) -> str:
    """`DRAM throughput 40.0 % -> 92.0 %`."""
    return f"{change.title} {quantity(change.a, change.unit)} -> {quantity(change.b, change.unit)}"


def quantity(value: float | None, unit: str) -> str:
    """A number with its unit, for people."""
    if value is None:
        return UNKNOWN
    match unit:
        case "%":
            return percent(value)
        case "s":
            return seconds(value)
        case "byte":
            return byte_count(round(value))
        case "byte/s":
            return rate(value, "B/s")
        case "hz":
            return rate(value, "Hz")
        case _:
            return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"


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
