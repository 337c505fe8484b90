"""The findings over many runs, for people, in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from frx_graph.reports.render.quantities import UNKNOWN, byte_count, plural, share_percent
from frx_graph.reports.render.source_path import path_end
from frx_graph.reports.render.text_console import INDENT, plain_table, print_title, print_wrapped, text_console
from frx_graph.reports.runs.fleet_document import BundlesPart, CostPart, FleetDocument, RunsPart, SitePart
from frx_graph.support.plain_text import one_line

_PROBLEMS = 5
_NAMES = 30
"""Bottlenecks and labels, of which frx knows some ten: others are those of a summary that frx has not written."""
_NAME = 34
NOTHING = "none that was recorded"


def render_fleet(document: FleetDocument, *, top: int, width: int, color: bool) -> str:
    """Render bottlenecks, the `top` rules, call sites and cards, and bundles that could not be read."""
    out, console = text_console(width, color, soft_wrap=True)
    runs = document.runs
    console.print(Text.assemble(("FLEET", "bold"), f"  {path_end(document.source, width - 7)}"))
    print_wrapped(console, _read(document.bundles, runs))
    print_wrapped(console, _time(runs))
    _bottlenecks(console, document)
    _labels(console, document)
    _rules(console, document, top)
    _sites(console, document, top)
    _advice(console, document, top)
    _problems(console, document.bundles)
    return out.getvalue()


def _read(bundles: BundlesPart, runs: RunsPart) -> str:
    said = f"{plural(runs.runs, 'run')}, {runs.with_trace:,} with a profiler's trace"
    if bundles.analysed_anew:
        said += f"; {bundles.analysed_anew:,} analysed anew"
    if bundles.twice:
        said += f"; {bundles.twice:,} there twice, and counted once"
    if bundles.problems:
        said += f"; {bundles.problems:,} could not be read"
    return said


def _time(runs: RunsPart) -> str:
    unknown = f"; {plural(runs.runs_not_timed, 'run')} not timed" if runs.runs_not_timed else ""
    return f"{plural(runs.steps, 'step')} in {hours(runs.seconds)}{unknown}"


def hours(seconds: float | None) -> str:
    """A long time with the unit that suits it."""
    if seconds is None:
        return UNKNOWN
    for unit, length in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{1e3 * seconds:,.1f} ms"


def _cost(cost: CostPart) -> tuple[str, str, str]:
    return hours(cost.seconds), share_percent(cost.share), f"{cost.runs_unknown:,}" if cost.runs_unknown else ""


def _bottlenecks(console: Console, document: FleetDocument) -> None:
    print_title(console, "WHAT HOLDS RUNS BACK")
    table = plain_table("bottleneck", "runs", "of runs", "time of their steps")
    for part in document.bottlenecks[:_NAMES]:
        share = share_percent(part.runs / document.runs.runs)
        table.add_row(_cell(part.label or NOTHING), f"{part.runs:,}", share, hours(part.seconds))
    console.print(table, soft_wrap=False)
    _more(console, len(document.bottlenecks) - _NAMES, document.bottlenecks_not_listed)


def _labels(console: Console, document: FleetDocument) -> None:
    present = [part for part in document.labels if part.runs]
    if not present:
        return
    print_title(console, "LABELS, AND WHAT THEY COST AT MOST")
    table = plain_table("label", "runs", "time", "of steps", "unknown", "not told")
    for part in present[:_NAMES]:
        name = f"{one_line(part.label, _NAME)}{' (symptom)' if part.symptom else ''}"
        table.add_row(Text(name), f"{part.runs:,}", *_cost(part.cost), f"{part.undecidable:,}")
    console.print(table, soft_wrap=False)
    _more(console, len(present) - _NAMES, document.labels_not_listed)
    print_wrapped(
        console,
        "unknown: runs that have it, of which its cost is not known; not told: runs that do not say",
    )


def _rules(console: Console, document: FleetDocument, top: int) -> None:
    if not document.rules:
        return
    print_title(console, "LAYOUT RULES")
    table = plain_table("rule", "runs", "sites", "a step", "time", "unknown")
    for part in document.rules[:top]:
        rule = part.rule if part.name is None else f"{part.rule} {part.name}"
        time, _, unknown = _cost(part.cost)
        table.add_row(_cell(rule), f"{part.runs:,}", f"{part.sites:,}", _bytes(part.bytes_per_step), time, unknown)
    console.print(table, soft_wrap=False)
    _more(console, len(document.rules) - top, document.rules_not_listed)


def _sites(console: Console, document: FleetDocument, top: int) -> None:
    if not document.sites:
        return
    print_title(console, "CALL SITES")
    for part in document.sites[:top]:
        print_wrapped(console, f"{one_line(part.rule)} {_place(part)}")
        print_wrapped(console, one_line(part.title), INDENT * 2)
        said = f"{plural(part.runs, 'run')}, {plural(part.findings, 'finding')}; {_moved(part)}; {_time_of(part.cost)}"
        print_wrapped(console, said, INDENT * 2)
    _more(console, len(document.sites) - top, document.sites_not_listed)


def _moved(part: SitePart) -> str:
    if part.bytes_per_step is None:
        return "bytes unknown"
    unknown = f", of {plural(part.findings_without_bytes, 'finding')} unknown" if part.findings_without_bytes else ""
    return f"{_bytes(part.bytes_per_step)} a step{unknown}"


def _time_of(cost: CostPart) -> str:
    if cost.seconds is None:
        return "time unknown"
    time, share, _ = _cost(cost)
    unknown = f", of {plural(cost.runs_unknown, 'run')} unknown or not all" if cost.runs_unknown else ""
    return f"{time}, {share} of steps{unknown}"


def _place(part: SitePart) -> str:
    if part.file is None:
        return part.subject
    line = "" if part.line is None else f":{part.line}"
    function = "" if part.function is None else f" in {part.function}"
    return f"{part.file}{line}{function}"


def _advice(console: Console, document: FleetDocument, top: int) -> None:
    if not document.advice:
        return
    print_title(console, "ADVICE, AND WHAT IT CAN SAVE AT MOST (A BOUND, NO FORECAST)")
    for part in document.advice[:top]:
        console.print(Text(f"{INDENT}{one_line(part.title, console.width - len(INDENT))}"))
        effort = f"{plural(part.runs, 'run')} | Effort: {part.effort} | Risk: {part.risk}"
        print_wrapped(console, f"{effort} | {_time_of(part.saving)}", INDENT * 2)
    _more(console, len(document.advice) - top, document.advice_not_listed)


def _problems(console: Console, bundles: BundlesPart) -> None:
    if not bundles.problems:
        return
    print_title(console, f"NOT READ ({bundles.problems:,})")
    for problem in bundles.problems_listed[:_PROBLEMS]:
        print_wrapped(console, f"{problem.place}: {problem.reason}")
    listed = len(bundles.problems_listed)
    _more(console, listed - _PROBLEMS, bundles.problems - listed)


def _more(console: Console, listed: int, not_listed: int) -> None:
    """Print the number of rows that are not shown, and the option that shows them."""
    if more := max(0, listed) + not_listed:
        where = "--parquet keeps all of them" if not_listed else "--json has them"
        console.print(Text(f"{INDENT}{more:,} more: {where}"))


def _bytes(count: float | None) -> str:
    return byte_count(None if count is None else round(count))


def _cell(text: str) -> Text:
    return Text(one_line(text, _NAME))
