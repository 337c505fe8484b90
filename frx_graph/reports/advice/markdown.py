"""Render advice as GitHub-flavoured Markdown for a pull request comment, an issue or a job summary."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from frx_graph.advice import Advice
from frx_graph.records import Copy, Finding
from frx_graph.reports.advice import wording
from frx_graph.reports.advice.comparison import compare, count_agreements
from frx_graph.reports.advice.grouping import FindingGroup, group_findings
from frx_graph.reports.render.marked_text import CodeBlock, Run, split_blocks, split_lines, split_runs
from frx_graph.reports.render.quantities import format_byte_count, format_count
from frx_graph.support.plain_text import clean_line

SITES_SHOWN = 50
SUBJECTS_SHOWN = 10
_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")
_BLOCK_START = re.compile(r"^(\d+(?=[.)](?:\s|$))|(?=[-+#=]))(.)")
"""Prefixes that make a line a list, a heading or a rule."""


def render_markdown(advice: Advice, *, top: int | None, root: Path) -> str:
    """Return the report with the findings of the first `top` places, or of all; files are named relative to `root`."""
    grouped = group_findings(advice.findings)
    shown = grouped.groups[:top]
    parts = [f"## frx-graph: {format_code(advice.target)}", f"**{escape_prose(wording.format_headline(advice))}**"]
    if wording.classify_outcome(advice) is not wording.Outcome.NOTHING_ANALYSED:
        parts.append(escape_prose(f"{wording.describe_copies(advice)}."))
    if shown:
        parts.append(_format_table(shown, root))
        if len(shown) < len(grouped.groups):
            parts.append(f"{format_count(len(grouped.groups) - len(shown), 'more place')} not shown.")
        parts += [_format_details(rank, group, root) for rank, group in enumerate(shown, start=1)]
        if grouped.worthless:
            parts.append(_format_worthless(grouped.worthless, root))
    if advice.observed is not None:
        parts.append(_format_comparison(advice.copies, advice.observed, root))
    for search in advice.autopilot:
        parts.append(f"### Autopilot, graph {format_code(search.graph_id)}")
        parts.append(escape_prose(wording.describe_search(search)))
        parts.append("\n".join(f"- {escape_prose(wording.format_tried(tried))}" for tried in search.tried))
    groups = wording.group_refusals(advice.refusals, root)
    if groups:
        parts.append(f"### Left alone ({len(advice.refusals)})")
        parts.append(
            "\n".join(
                f"- {escape_prose(g.format_subjects(SUBJECTS_SHOWN))}: {render_runs(split_runs(g.reason))}"
                for g in groups
            )
        )
    environment = advice.environment
    made = [
        f"frx-graph {environment.frx_version}",
        f"torch {environment.torch_version}",
        wording.describe_machine(environment),
    ]
    if environment.contract:
        made.append(f"contract {clean_line(environment.contract)}")
    parts.append(f"<sub>{escape_prose(', '.join(made))}</sub>")
    return "\n\n".join(parts) + "\n"


def escape_prose(text: str) -> str:
    """Return `text` on one line, escaped for Markdown, HTML and GitHub's mentions."""
    return render_runs((Run(clean_line(text, len(text)), code=False),))


def render_runs(pieces: Sequence[Run]) -> str:
    """Return prose with code spans, on one line."""
    line = "".join(
        format_code(piece.text) if piece.code else escape_html(_SPECIAL.sub(r"\\\1", piece.text)) for piece in pieces
    )
    return _BLOCK_START.sub(r"\1\\\2", line)


def escape_html(text: str) -> str:
    """Return printable text for the inside of an HTML tag, which Markdown does not interpret."""
    return html.escape(text, quote=False).replace("@", "&#64;")


def format_code(text: str, *, in_table: bool = False) -> str:
    """Return `text` on one line as a code span, fenced by more backticks than it holds; empty for empty text."""
    name = clean_line(text)
    if not name:
        return ""
    fence = "`" * (max((len(run) for run in re.findall(r"`+", name)), default=0) + 1)
    padding = " " if name.startswith("`") or name.endswith("`") else ""
    span = f"{fence}{padding}{name}{padding}{fence}"
    return span.replace("|", "\\|") if in_table else span


def format_code_block(text: Sequence[str], language: str = "text") -> str:
    """Return lines as a fenced block that no line can close."""
    longest = max((len(run) for line in text for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *text, fence])


def _format_table(groups: Sequence[FindingGroup], root: Path) -> str:
    rows = ["| # | Finding | Where | Saves a step | Effort | Risk |", "|--:|---|---|--:|---|---|"]
    for rank, group in enumerate(groups, start=1):
        finding = group.first
        more = f"<br>and {format_count(len(group.others), 'more finding')} there" if group.others else ""
        module = format_code(finding.site.module_path, in_table=True)
        cells = (
            str(rank),
            f"**{finding.rule}** {escape_prose(wording.format_title(finding))}{more}",
            format_code(wording.format_location(finding.site, root), in_table=True)
            + (f"<br>{module}" if module else ""),
            "<br>".join(escape_prose(line) for line in wording.describe_impact(finding).lines),
            finding.effort.value,
            finding.risk.value,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _format_details(rank: int, group: FindingGroup, root: Path) -> str:
    finding = group.first
    summary = f"{rank}. {finding.rule} {wording.format_title(finding)}"
    body = [
        f"<details><summary>{escape_html(summary)}</summary>",
        f"{format_code(wording.format_finding_place(finding, root))}, {wording.format_frequency(finding)}, severity "
        f"{finding.severity.value}, "
        f"confidence {finding.confidence:.2f}",
        *_format_fix(finding),
    ]
    if finding.evidence:
        body.append(
            "\n".join(
                f"- {render_runs(split_runs(wording.format_evidence(fact)))}" for fact in wording.sort_evidence(finding)
            )
        )
    for other in group.others:
        body.append(f"Also there: **{other.rule}** {escape_prose(wording.format_title(other))}")
        body += _format_fix(other)
    return "\n\n".join([*body, "</details>"])


def _format_fix(finding: Finding) -> list[str]:
    parts = [
        format_code_block(block.lines) if isinstance(block, CodeBlock) else render_runs(block.runs)
        for block in split_blocks(finding.fix)
    ]
    if offered := wording.describe_offer(finding):
        parts.append(f"`frx fix`: {escape_prose(offered)}")
    if finding.offer is not None and finding.offer.diff:
        parts.append(format_code_block(split_lines(finding.offer.diff), "diff"))
    return parts


def _format_worthless(findings: Sequence[Finding], root: Path) -> str:
    summary = f"{format_count(len(findings), 'finding')} with nothing to do by themselves"
    lines = (
        f"- **{one.rule}** {escape_prose(wording.format_title(one))}, "
        f"{format_code(wording.format_place(one.site, root))}: {render_runs(split_runs(wording.explain_need(one)))}"
        for one in findings
    )
    return "\n\n".join([f"<details><summary>{summary}</summary>", "\n".join(lines), "</details>"])


def _format_comparison(predicted: tuple[Copy, ...], observed: tuple[Copy, ...], root: Path) -> str:
    rows = compare(predicted, observed)
    if not rows:
        return "### Predicted beside observed\n\nNo layout copy was predicted or observed."
    table = ["| Call site | Predicted | Observed | |", "|---|--:|--:|---|"]
    table += [
        f"| {format_code(wording.format_location(row.site, root), in_table=True)} | "
        f"{_format_copies(row.predicted_count, row.predicted_bytes)} "
        f"| {_format_copies(row.observed_count, row.observed_bytes)} | {row.agreement.value} |"
        for row in rows[:SITES_SHOWN]
    ]
    counts = ", ".join(f"{count} {kind.value}" for kind, count in count_agreements(rows).items() if count)
    more = f" The {SITES_SHOWN} largest are shown." if len(rows) > SITES_SHOWN else ""
    return "\n\n".join(
        ["### Predicted beside observed", "\n".join(table), f"{format_count(len(rows), 'call site')}: {counts}.{more}"]
    )


def _format_copies(count: int | None, size: int | None) -> str:
    return "–" if count is None else f"{count:,}×, {format_byte_count(size)}"
