"""Prints a comparison in 80 columns: a table a case, geometric means by group, the bounds."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text
from versus_arms import Kind
from versus_case import Mode
from versus_results import ArmResult, CaseResult, Verdict, speed
from versus_timing import geometric_mean

from frx_graph.support.allocator import Allocation

WIDTH = 80
UNKNOWN = "–"


def print_results(
    results: Sequence[CaseResult],
    judged: Sequence[Verdict],
    left_out: Sequence[str],
    console: Console | None = None,
) -> None:
    """Everything, to standard output if no console is given."""
    console = console or Console(width=WIDTH, highlight=False, markup=False)
    for case in results:
        _print_case(case, console)
    if results:
        _print_means(results, console)
    if judged:
        _print_verdicts(judged, console)
    if left_out:
        console.print(f"\n{len(left_out)} cases left out for lack of time, from {left_out[0]}")


def _table(*headings: str, gap: int = 2) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=number > 0, overflow="fold")
    return table


def _print_case(case: CaseResult, console: Console) -> None:
    rounds = len(case.arms[0].seconds)
    disturbed = f", {case.disturbed} of them disturbed by other programs" if case.disturbed else ""
    console.print(Text(f"\n{case.title}", style="bold"))
    console.print(Text(f"{rounds} rounds of {case.block} steps{disturbed}", style="dim"))
    table = _table("arm", "speed", "95 %", "ms", "compile s", "peak MB", "copies", "MB", gap=1)
    fastest = max(case.arms, key=lambda arm: speed(arm) or 0.0)
    for arm in case.arms:
        if arm.error is not None:
            table.add_row(Text(arm.arm), Text("broken", style="bold red"))
            continue
        table.add_row(Text(arm.arm, style="bold" if arm is fastest else ""), *_figures(arm))
    console.print(table)
    for arm in case.arms:
        if arm.error is not None:
            console.print(Text(f"  {arm.arm}: {arm.error}", style="red"))


def _figures(arm: ArmResult) -> list[str]:
    interval = None if arm.ratio is None else arm.ratio.interval
    return [
        number(speed(arm), ".2f"),
        UNKNOWN if interval is None else f"{interval[0]:.2f}–{interval[1]:.2f}",
        number(arm.median_s, ".2f", 1e3),
        number(arm.compile_s, ".1f"),
        number(arm.peak_bytes, ".1f", 1e-6),
        number(arm.conversions, "d"),
        number(arm.conversion_bytes, ".1f", 1e-6),
    ]


def number(value: float | None, form: str, factor: float = 1) -> str:
    """`value` times `factor` as text; a dash where it is unknown."""
    if value is None:
        return UNKNOWN
    return format(value if form == "d" else value * factor, form)


def _print_means(results: Sequence[CaseResult], console: Console) -> None:
    """Geometric means of the speeds, one table for each dtype, inner compiler and allocation of memory."""
    for dtype, inner, allocation in dict.fromkeys((case.dtype, case.inner, case.allocation) for case in results):
        told = "" if allocation is Allocation.DEFAULT else f", {allocation} memory"
        console.print(Text(f"\nGeometric means over plain {inner}, {dtype}{told}", style="bold"))
        table = _table("group", "cases", "best variant", "best frx", "frx : variant")
        of_table = [case for case in results if (case.dtype, case.inner, case.allocation) == (dtype, inner, allocation)]
        for kind in dict.fromkeys(_kind_of_network(case) for case in of_table):
            cases = [case for case in of_table if _kind_of_network(case) == kind]
            table.add_row(
                kind,
                str(len(cases)),
                _mean([speed(case.best(Kind.VARIANT)) for case in cases]),
                _mean([case.frx_speed for case in cases]),
                _mean([case.frx_over_variants for case in cases]),
            )
        console.print(table)


def _kind_of_network(case: CaseResult) -> str:
    return f"{case.group}, {case.mode if case.mode is Mode.TRAINING else f'batch {case.batch}'}"


def _mean(values: Sequence[float | None]) -> str:
    return number(geometric_mean([value for value in values if value is not None]), ".2f")


_WORDS = {True: ("holds", "green"), False: ("broken", "bold red"), None: ("not measured", "dim")}


def _print_verdicts(judged: Sequence[Verdict], console: Console) -> None:
    console.print(Text("\nBounds", style="bold"))
    for verdict in judged:
        word, style = _WORDS[verdict.holds]
        line = Text(f"{word:>12}  ", style=style)
        line.append(verdict.bound, style="default")
        if verdict.figure is not None:
            line.append(f": {verdict.figure:.3f}")
        if verdict.about:
            line.append(f" ({verdict.about})", style="dim")
        console.print(line)
