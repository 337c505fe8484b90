"""Render findings over many runs for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from frx_graph.reports.render.quantities import UNKNOWN, format_byte_count, format_count, format_share
from frx_graph.reports.render.source_path import cut_path
from frx_graph.reports.render.text_console import (
    INDENT,
    make_console,
    print_table,
    print_title,
    print_wrapped,
)
from frx_graph.reports.runs.fleet_document import BundlesPart, CostPart, FleetDocument, RunsPart, SitePart
from frx_graph.support.plain_text import clean_line

_PROBLEMS = 5
_NAMES = 30
"""Bottlenecks and labels that are shown. frx knows about ten; others come from a summary that frx did not write."""
_NAME = 34
NOTHING = "none recorded"


def render_fleet(document: FleetDocument, *, top: int, width: int, color: bool) -> str:
    """Render bottlenecks, the `top` rules, call sites and cards, and bundles that could not be read."""
    out, console = make_console(width, color, soft_wrap=True)
    runs = document.runs
    console.print(Text.assemble(("FLEET", "bold"), f"  {cut_path(document.source, width - 7)}"))
    print_wrapped(console, _describe_bundles(document.bundles, runs))
    unknown = f"; {format_count(runs.runs_not_timed, 'run')} not timed" if runs.runs_not_timed else ""
    print_wrapped(console, f"{format_count(runs.steps, 'step')} in {format_hours(runs.seconds)}{unknown}")
    _print_bottlenecks(console, document)
    _print_labels(console, document)
    _print_rules(console, document, top)
    _print_sites(console, document, top)
    _print_advice(console, document, top)
    bundles = document.bundles
    if bundles.problems:
        print_title(console, f"NOT READ ({bundles.problems:,})")
    for problem in bundles.problems_listed[:_PROBLEMS]:
        print_wrapped(console, f"{problem.place}: {problem.reason}")
    listed = len(bundles.problems_listed)
    _print_hidden(console, listed - _PROBLEMS, bundles.problems - listed)
    return out.getvalue()


def _describe_bundles(bundles: BundlesPart, runs: RunsPart) -> str:
    said = f"{format_count(runs.runs, 'run')}, {runs.with_trace:,} with a profiler's trace"
    for count, what in (
        (bundles.analysed_anew, "analysed again"),
        (bundles.twice, "duplicates, counted once"),
        (bundles.problems, "could not be read"),
    ):
        said += f"; {count:,} {what}" if count else ""
    return said


def format_hours(seconds: float | None) -> str:
    """Return a long time in a suitable unit."""
    if seconds is None:
        return UNKNOWN
    for unit, length in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{1e3 * seconds:,.1f} ms"


def _format_cost(cost: CostPart) -> tuple[str, str, str]:
    return format_hours(cost.seconds), format_share(cost.share), f"{cost.runs_unknown:,}" if cost.runs_unknown else ""


def _print_bottlenecks(console: Console, document: FleetDocument) -> None:
    print_title(console, "WHAT HOLDS RUNS BACK")
    rows = []
    for part in document.bottlenecks[:_NAMES]:
        share = format_share(part.runs / document.runs.runs)
        rows.append((_make_cell(part.label or NOTHING), f"{part.runs:,}", share, format_hours(part.seconds)))
    print_table(console, ("bottleneck", "runs", "of runs", "time of their steps"), rows)
    _print_hidden(console, len(document.bottlenecks) - _NAMES, document.bottlenecks_not_listed)


def _print_labels(console: Console, document: FleetDocument) -> None:
    present = [part for part in document.labels if part.runs]
    if not present:
        return
    print_title(console, "LABELS, AND WHAT THEY COST AT MOST")
    rows = []
    for part in present[:_NAMES]:
        name = f"{clean_line(part.label, _NAME)}{' (symptom)' if part.symptom else ''}"
        rows.append((Text(name), f"{part.runs:,}", *_format_cost(part.cost), f"{part.undecidable:,}"))
    print_table(console, ("label", "runs", "time", "of steps", "unknown", "not told"), rows)
    _print_hidden(console, len(present) - _NAMES, document.labels_not_listed)
    print_wrapped(console, "unknown: affected runs with unknown cost; not told: runs that cannot show it")


def _print_rules(console: Console, document: FleetDocument, top: int) -> None:
    if not document.rules:
        return
    print_title(console, "LAYOUT RULES")
    rows = []
    for part in document.rules[:top]:
        rule = part.rule if part.name is None else f"{part.rule} {part.name}"
        time, _, unknown = _format_cost(part.cost)
        traffic = _format_bytes(part.bytes_per_step)
        rows.append((_make_cell(rule), f"{part.runs:,}", f"{part.sites:,}", traffic, time, unknown))
    print_table(console, ("rule", "runs", "sites", "a step", "time", "unknown"), rows)
    _print_hidden(console, len(document.rules) - top, document.rules_not_listed)


def _print_sites(console: Console, document: FleetDocument, top: int) -> None:
    if not document.sites:
        return
    print_title(console, "CALL SITES")
    for part in document.sites[:top]:
        print_wrapped(console, f"{clean_line(part.rule)} {_format_place(part)}")
        print_wrapped(console, clean_line(part.title), INDENT * 2)
        counts = f"{format_count(part.runs, 'run')}, {format_count(part.findings, 'finding')}"
        said = f"{counts}; {_describe_traffic(part)}; {_describe_cost(part.cost)}"
        print_wrapped(console, said, INDENT * 2)
    _print_hidden(console, len(document.sites) - top, document.sites_not_listed)


def _describe_traffic(part: SitePart) -> str:
    if part.bytes_per_step is None:
        return "bytes unknown"
    without = part.findings_without_bytes
    unknown = f", of {format_count(without, 'finding')} unknown" if without else ""
    return f"{_format_bytes(part.bytes_per_step)} a step{unknown}"


def _describe_cost(cost: CostPart) -> str:
    if cost.seconds is None:
        return "time unknown"
    time, share, _ = _format_cost(cost)
    unknown = f", of {format_count(cost.runs_unknown, 'run')} unknown or not all" if cost.runs_unknown else ""
    return f"{time}, {share} of steps{unknown}"


def _format_place(part: SitePart) -> str:
    if part.file is None:
        return part.subject
    line = "" if part.line is None else f":{part.line}"
    function = "" if part.function is None else f" in {part.function}"
    return f"{part.file}{line}{function}"


def _print_advice(console: Console, document: FleetDocument, top: int) -> None:
    if not document.advice:
        return
    print_title(console, "ADVICE, AND THE MOST IT CAN SAVE (A BOUND, NOT A FORECAST)")
    for part in document.advice[:top]:
        console.print(Text(f"{INDENT}{clean_line(part.title, console.width - len(INDENT))}"))
        effort = f"{format_count(part.runs, 'run')} | Effort: {part.effort} | Risk: {part.risk}"
        print_wrapped(console, f"{effort} | {_describe_cost(part.saving)}", INDENT * 2)
    _print_hidden(console, len(document.advice) - top, document.advice_not_listed)


def _print_hidden(console: Console, listed: int, not_listed: int) -> None:
    """Print the number of rows that are not shown, and the option that shows them."""
    if more := max(0, listed) + not_listed:
        where = "--parquet keeps all of them" if not_listed else "--json has them"
        console.print(Text(f"{INDENT}{more:,} more: {where}"))


def _format_bytes(count: float | None) -> str:
    return format_byte_count(None if count is None else round(count))


def _make_cell(text: str) -> Text:
    return Text(clean_line(text, _NAME))
