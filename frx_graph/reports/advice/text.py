"""The advice in a terminal: numbers, the ranked table, the first fixes, what was refused."""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from frx_graph.advice import Advice
from frx_graph.records import Copy, Finding, Risk, Severity
from frx_graph.reports.advice.comparison import Agreement, agreement_counts, compare
from frx_graph.reports.advice.wording import (
    Outcome,
    copies_sentence,
    evidence_line,
    frequency,
    group_refusals,
    headline,
    impact,
    location,
    machine,
    outcome_of,
    place,
    strongest_evidence,
    title,
)
from frx_graph.reports.render.marked_text import lines
from frx_graph.reports.render.quantities import byte_count, plural, seconds
from frx_graph.reports.render.text_console import text_console
from frx_graph.support.plain_text import one_line

EVIDENCE_SHOWN = 2
SUBJECTS_SHOWN = 4
SITES_SHOWN = 20

_SEVERITY_STYLE = {Severity.HIGH: "bold red", Severity.MEDIUM: "yellow", Severity.LOW: "cyan", Severity.INFO: "dim"}
_RISK_STYLE = {Risk.LOW: "green", Risk.MEDIUM: "yellow", Risk.HIGH: "red"}
_OUTCOME_STYLE = {
    Outcome.FINDINGS: "bold",
    Outcome.CLEAN: "bold green",
    Outcome.PARTIAL: "bold yellow",
    Outcome.NOTHING_ANALYSED: "bold red",
}
_AGREEMENT_STYLE = {
    Agreement.AGREES: "green",
    Agreement.DIFFERS: "yellow",
    Agreement.NOT_OBSERVED: "red",
    Agreement.NOT_PREDICTED: "red",
}


def render_text(advice: Advice, *, top: int, width: int, color: bool, root: Path) -> str:
    """The report at `width` columns, with the first `top` findings; files are named relative to `root`."""
    out, console = text_console(width, color)
    _print_header(console, advice)
    shown = advice.findings[:top]
    if shown:
        console.print(_ranked_table(shown, root))
        if hidden := len(advice.findings) - len(shown):
            console.print(Text(f"{plural(hidden, 'more finding')}: --top {len(advice.findings)} shows all.\n", "dim"))
        for rank, finding in enumerate(shown, start=1):
            _print_details(console, rank, finding, root)
    if advice.observed is not None:
        _print_comparison(console, advice.copies, advice.observed, root)
    _print_refusals(console, advice, root)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().rstrip().split("\n"))


def _print_header(console: Console, advice: Advice) -> None:
    environment = advice.environment
    console.print(Text.assemble((f"frx-graph {environment.frx_version}", "bold"), f"  {one_line(advice.target)}"))
    basis_of_advice = [f"torch {environment.torch_version}", machine(environment)]
    if environment.contract:
        basis_of_advice.append(f"contract {one_line(environment.contract)}")
    console.print(Text(", ".join(basis_of_advice), "dim"))
    timings = advice.timings
    parts = (
        ("capture", timings.capture_s),
        ("analysis", timings.analysis_s),
        ("measuring", timings.measure_s),
        ("observing", timings.observe_s),
    )
    took = ", ".join(f"{name} {seconds(value)}" for name, value in parts if value is not None)
    console.print(Text(f"{plural(len(advice.graphs), 'graph')} ({took})", "dim"))
    console.print()
    outcome = outcome_of(advice)
    console.print(Text(headline(advice), _OUTCOME_STYLE[outcome]))
    if outcome is not Outcome.NOTHING_ANALYSED:
        console.print(Text(f"{copies_sentence(advice)}."))
    if not advice.findings:
        console.print()


def _ranked_table(findings: tuple[Finding, ...], root: Path) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), leading=1)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("Finding", overflow="fold", ratio=1)
    table.add_column("Saves a step", no_wrap=True)
    table.add_column("Effort", no_wrap=True)
    table.add_column("Risk", no_wrap=True)
    for rank, finding in enumerate(findings, start=1):
        what = Text(overflow="fold")
        what.append(finding.rule, _SEVERITY_STYLE[finding.severity])
        what.append(f" {title(finding)}\n")
        what.append(place(finding.site, root), "cyan")
        module = one_line(finding.site.module_path)
        what.append(f"\n{module}, {frequency(finding)}" if module else f"\n{frequency(finding)}", "dim")
        saves = Text("\n".join(impact(finding).lines))
        table.add_row(str(rank), what, saves, finding.effort.value, Text(finding.risk.value, _RISK_STYLE[finding.risk]))
    return table


def _print_details(console: Console, rank: int, finding: Finding, root: Path) -> None:
    console.print(
        Text.assemble(
            (f"{rank}. {finding.rule}", _SEVERITY_STYLE[finding.severity]),
            f" {location(finding.site, root)}",
            (f"  {finding.severity.value}, confidence {finding.confidence:.2f}", "dim"),
            overflow="fold",
        )
    )
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=6, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("   Fix", Text("\n".join(lines(finding.fix)), overflow="fold"))
    for index, fact in enumerate(strongest_evidence(finding)[:EVIDENCE_SHOWN]):
        grid.add_row("" if index else "   Why", Text(evidence_line(fact), "dim", overflow="fold"))
    console.print(grid)
    console.print()


def _print_comparison(console: Console, predicted: tuple[Copy, ...], observed: tuple[Copy, ...], root: Path) -> None:
    rows = compare(predicted, observed)
    console.print(Text("Predicted beside observed", "bold"))
    if not rows:
        console.print(Text("No layout copy was predicted and none was observed.\n"))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Call site", overflow="fold")
    table.add_column("Predicted", justify="right", no_wrap=True)
    table.add_column("Observed", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows[:SITES_SHOWN]:
        table.add_row(
            Text(location(row.site, root)),
            _amount(row.predicted_count, row.predicted_bytes),
            _amount(row.observed_count, row.observed_bytes),
            Text(row.agreement.value, _AGREEMENT_STYLE[row.agreement]),
        )
    console.print(table)
    counts = ", ".join(f"{count} {kind.value}" for kind, count in agreement_counts(rows).items() if count)
    more = f" The {SITES_SHOWN} largest are shown." if len(rows) > SITES_SHOWN else ""
    console.print(Text(f"{plural(len(rows), 'call site')}: {counts}.{more}\n"))


def _amount(count: int | None, size: int | None) -> str:
    return "–" if count is None else f"{count:,}×  {byte_count(size)}"


def _print_refusals(console: Console, advice: Advice, root: Path) -> None:
    groups = group_refusals(advice.refusals, root)
    if not groups:
        return
    console.print(Text(f"{plural(len(advice.refusals), 'thing')} left alone", "bold"))
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for group in groups:
        grid.add_row("-", Text(f"{group.reason}: {group.listed(SUBJECTS_SHOWN)}", overflow="fold"))
    console.print(grid)
