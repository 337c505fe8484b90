"""Render advice for a terminal: numbers, the ranked table, the first fixes, and the refusals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from frx_graph.advice import Advice
from frx_graph.records import Copy, Finding, Risk, Severity
from frx_graph.reports.advice import wording
from frx_graph.reports.advice.comparison import Agreement, compare, count_agreements
from frx_graph.reports.advice.grouping import FindingGroup, group_findings
from frx_graph.reports.render.marked_text import split_lines
from frx_graph.reports.render.quantities import format_byte_count, format_count, format_seconds
from frx_graph.reports.render.text_console import make_console, print_table, print_wrapped
from frx_graph.support.plain_text import clean_line

EVIDENCE_SHOWN = 2
SUBJECTS_SHOWN = 4
SITES_SHOWN = 20
PLACES_SHOWN = 6
NEXT_STEPS = 5

_SEVERITY_STYLE = {Severity.HIGH: "bold red", Severity.MEDIUM: "yellow", Severity.LOW: "cyan", Severity.INFO: "dim"}
_RISK_STYLE = {Risk.LOW: "green", Risk.MEDIUM: "yellow", Risk.HIGH: "red"}
_OUTCOME_STYLE = {
    wording.Outcome.FINDINGS: "bold",
    wording.Outcome.CLEAN: "bold green",
    wording.Outcome.PARTIAL: "bold yellow",
    wording.Outcome.NOTHING_ANALYSED: "bold red",
}
_AGREEMENT_STYLE = {
    Agreement.AGREES: "green",
    Agreement.DIFFERS: "yellow",
    Agreement.NOT_OBSERVED: "red",
    Agreement.NOT_PREDICTED: "red",
}


def render_text(advice: Advice, *, top: int, width: int, color: bool, root: Path) -> str:
    """Return the report at `width` columns, with the first `top` findings; files are named relative to `root`."""
    out, console = make_console(width, color)
    _print_header(console, advice)
    found = group_findings(advice.findings)
    shown = found.groups[:top]
    if shown:
        console.print(_make_table(shown, root))
        if hidden := len(found.groups) - len(shown):
            console.print(Text(f"{format_count(hidden, 'more place')}: --top {len(found.groups)} shows all.\n", "dim"))
        for rank, group in enumerate(shown, start=1):
            _print_details(console, rank, group, root)
    _print_worthless(console, found.worthless, root)
    if advice.observed is not None:
        _print_comparison(console, advice.copies, advice.observed, root)
    _print_autopilot(console, advice)
    _print_refusals(console, advice, root)
    _print_next_steps(console, shown, root)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().rstrip().split("\n"))


def render_totals(advices: Sequence[Advice], *, width: int, color: bool) -> str:
    """Return a table of several targets: findings, copies a step and their traffic."""
    out, console = make_console(width, color)
    console.print(Text("ALL TARGETS", "bold"))
    rows = (
        (
            clean_line(one.target, 60),
            f"{len(one.findings):,}",
            wording.format_known_count(one.totals.copies_per_step),
            format_byte_count(one.totals.copy_bytes_per_step),
        )
        for one in advices
    )
    print_table(console, ("target", "findings", "copies a step", "traffic"), rows)
    return out.getvalue()


def _print_header(console: Console, advice: Advice) -> None:
    environment = advice.environment
    console.print(Text.assemble((f"frx-graph {environment.frx_version}", "bold"), f"  {clean_line(advice.target)}"))
    basis_of_advice = [f"torch {environment.torch_version}", wording.describe_machine(environment)]
    if environment.contract:
        basis_of_advice.append(f"contract {clean_line(environment.contract)}")
    console.print(Text(", ".join(basis_of_advice), "dim"))
    timings = advice.timings
    parts = (
        ("capture", timings.capture_s),
        ("analysis", timings.analysis_s),
        ("measuring", timings.measure_s),
        ("observing", timings.observe_s),
    )
    took = ", ".join(f"{name} {format_seconds(value)}" for name, value in parts if value is not None)
    console.print(Text(f"{format_count(len(advice.graphs), 'graph')} ({took})", "dim"))
    console.print()
    outcome = wording.classify_outcome(advice)
    console.print(Text(wording.format_headline(advice), _OUTCOME_STYLE[outcome]))
    if outcome is not wording.Outcome.NOTHING_ANALYSED:
        console.print(Text(f"{wording.describe_copies(advice)}."))
    if not advice.findings:
        console.print()


def _make_table(groups: Sequence[FindingGroup], root: Path) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), leading=1)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("Finding", overflow="fold", ratio=1)
    table.add_column("Saves a step", no_wrap=True)
    table.add_column("Effort", no_wrap=True)
    table.add_column("Risk", no_wrap=True)
    for rank, group in enumerate(groups, start=1):
        finding = group.first
        what = Text(overflow="fold")
        what.append(finding.rule, _SEVERITY_STYLE[finding.severity])
        what.append(f" {wording.format_title(finding)}\n")
        what.append(wording.format_finding_place(finding, root), "cyan")
        module = clean_line(finding.site.module_path)
        what.append(
            f"\n{module}, {wording.format_frequency(finding)}" if module else f"\n{wording.format_frequency(finding)}",
            "dim",
        )
        if group.others:
            what.append(f"\nalso {_list_rules(group.others)}", "dim")
        saves = Text("\n".join(wording.describe_impact(finding).lines))
        table.add_row(str(rank), what, saves, finding.effort.value, Text(finding.risk.value, _RISK_STYLE[finding.risk]))
    return table


def _list_rules(findings: Sequence[Finding]) -> str:
    return ", ".join(dict.fromkeys(finding.rule for finding in findings))


def _print_details(console: Console, rank: int, group: FindingGroup, root: Path) -> None:
    finding = group.first
    console.print(
        Text.assemble(
            (f"{rank}. {finding.rule}", _SEVERITY_STYLE[finding.severity]),
            f" {wording.format_location(finding.site, root)}",
            (f"  {finding.severity.value}, confidence {finding.confidence:.2f}", "dim"),
            overflow="fold",
        )
    )
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=6, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("   Fix", Text("\n".join(split_lines(finding.fix)), overflow="fold"))
    if offered := wording.describe_offer(finding):
        grid.add_row("", Text(f"frx fix: {offered}", "green" if finding.offer and finding.offer.edits else "dim"))
    for index, fact in enumerate(wording.sort_evidence(finding)[:EVIDENCE_SHOWN]):
        grid.add_row("" if index else "   Why", Text(wording.format_evidence(fact), "dim", overflow="fold"))
    for index, other in enumerate(group.others):
        said = f"{other.rule} {wording.format_title(other)}: {wording.describe_impact(other).sentence}"
        grid.add_row("" if index else "  Also", Text(said, overflow="fold"))
    console.print(grid)
    console.print()


def _print_worthless(console: Console, findings: Sequence[Finding], root: Path) -> None:
    if not findings:
        return
    console.print(Text(f"{format_count(len(findings), 'finding')} with nothing to do by themselves", "bold"))
    for one in findings[:PLACES_SHOWN]:
        said = f"{one.rule} {wording.format_location(one.site, root)}: {wording.explain_need(one)}"
        print_wrapped(console, said, "", "  ")
    if len(findings) > PLACES_SHOWN:
        console.print(Text(f"and {len(findings) - PLACES_SHOWN} more, in the HTML and JSON reports", "dim"))
    console.print()


def _print_next_steps(console: Console, groups: Sequence[FindingGroup], root: Path) -> None:
    """Print the first different fixes where a reader of a long report ends."""
    places: dict[str, list[str]] = {}
    for group in groups:
        if group.first.bytes_per_step != 0 or group.first.saving.measured_pct:
            places.setdefault(wording.join_fix(group.first), []).append(wording.format_location(group.first.site, root))
    if len(groups) < 2 or not places:
        return
    console.print(Text("What to do now", "bold"))
    for number, (fix, where) in enumerate(islice(places.items(), NEXT_STEPS), start=1):
        more = f" and {format_count(len(where) - 1, 'more place')}" if len(where) > 1 else ""
        print_wrapped(console, f"{number}. {where[0]}{more}: {fix}", "", "   ")


def _print_comparison(console: Console, predicted: tuple[Copy, ...], observed: tuple[Copy, ...], root: Path) -> None:
    rows = compare(predicted, observed)
    console.print(Text("Predicted beside observed", "bold"))
    if not rows:
        console.print(Text("No layout copy was predicted or observed.\n"))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Call site", overflow="fold")
    table.add_column("Predicted", justify="right", no_wrap=True)
    table.add_column("Observed", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows[:SITES_SHOWN]:
        table.add_row(
            Text(wording.format_location(row.site, root)),
            _format_copies(row.predicted_count, row.predicted_bytes),
            _format_copies(row.observed_count, row.observed_bytes),
            Text(row.agreement.value, _AGREEMENT_STYLE[row.agreement]),
        )
    console.print(table)
    counts = ", ".join(f"{count} {kind.value}" for kind, count in count_agreements(rows).items() if count)
    more = f" The {SITES_SHOWN} largest are shown." if len(rows) > SITES_SHOWN else ""
    console.print(Text(f"{format_count(len(rows), 'call site')}: {counts}.{more}\n"))


def _format_copies(count: int | None, size: int | None) -> str:
    return "–" if count is None else f"{count:,}×  {format_byte_count(size)}"


def _print_autopilot(console: Console, advice: Advice) -> None:
    for search in advice.autopilot:
        console.print(Text(f"Autopilot, graph {clean_line(search.graph_id)}", "bold"))
        console.print(Text(wording.describe_search(search), overflow="fold"))
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for tried in search.tried:
            grid.add_row("-", Text(wording.format_tried(tried), overflow="fold"))
        console.print(grid)
        console.print()


def _print_refusals(console: Console, advice: Advice, root: Path) -> None:
    groups = wording.group_refusals(advice.refusals, root)
    if not groups:
        return
    console.print(Text(f"{format_count(len(advice.refusals), 'thing')} left alone", "bold"))
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for group in groups:
        grid.add_row("-", Text(f"{group.format_subjects(SUBJECTS_SHOWN)}: {group.reason}", overflow="fold"))
    console.print(grid)
    console.print()
