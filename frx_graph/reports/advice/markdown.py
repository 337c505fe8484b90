"""The advice as GitHub-flavoured Markdown: for a pull request comment, an issue or a job summary."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from frx_graph.advice import Advice
from frx_graph.records import Copy, Finding
from frx_graph.reports.advice.comparison import agreement_counts, compare
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
from frx_graph.reports.render.marked_text import CodeBlock, Run, blocks, runs
from frx_graph.reports.render.quantities import byte_count, plural
from frx_graph.support.plain_text import one_line

SITES_SHOWN = 50
SUBJECTS_SHOWN = 10
_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")
_BLOCK_START = re.compile(r"^(\d+(?=[.)](?:\s|$))|(?=[-+#=]))(.)")
"""What makes a line a list, a heading or a rule."""


def render_markdown(advice: Advice, *, top: int | None, root: Path) -> str:
    """The report with the first `top` findings, or all of them; files are named relative to `root`."""
    shown = advice.findings[:top]
    parts = [f"## frx-graph: {code(advice.target)}", f"**{prose(headline(advice))}**"]
    if outcome_of(advice) is not Outcome.NOTHING_ANALYSED:
        parts.append(prose(f"{copies_sentence(advice)}."))
    if shown:
        parts.append(_table(shown, root))
        if len(shown) < len(advice.findings):
            parts.append(f"{plural(len(advice.findings) - len(shown), 'more finding')} not shown.")
        parts += [_details(rank, finding, root) for rank, finding in enumerate(shown, start=1)]
    if advice.observed is not None:
        parts.append(_comparison(advice.copies, advice.observed, root))
    groups = group_refusals(advice.refusals, root)
    if groups:
        parts.append(f"### Left alone ({len(advice.refusals)})")
        parts.append("\n".join(f"- {marked(runs(g.reason))}: {prose(g.listed(SUBJECTS_SHOWN))}" for g in groups))
    environment = advice.environment
    made = [f"frx-graph {environment.frx_version}", f"torch {environment.torch_version}", machine(environment)]
    if environment.contract:
        made.append(f"contract {one_line(environment.contract)}")
    parts.append(f"<sub>{prose(', '.join(made))}</sub>")
    return "\n\n".join(parts) + "\n"


def prose(text: str) -> str:
    """`text` on one line with nothing in it that Markdown, HTML or GitHub's mentions would act on."""
    return marked((Run(one_line(text, len(text)), code=False),))


def marked(pieces: Sequence[Run]) -> str:
    """Prose with code spans, on one line."""
    line = "".join(code(piece.text) if piece.code else raw_html(_SPECIAL.sub(r"\\\1", piece.text)) for piece in pieces)
    return _BLOCK_START.sub(r"\1\\\2", line)


def raw_html(text: str) -> str:
    """Printable text for the inside of an HTML tag, where Markdown has no say."""
    return html.escape(text, quote=False).replace("@", "&#64;")


def code(text: str, *, in_table: bool = False) -> str:
    """`text` on one line as a code span, fenced by more backticks than it holds; nothing stays empty."""
    name = one_line(text)
    if not name:
        return ""
    fence = "`" * (max((len(run) for run in re.findall(r"`+", name)), default=0) + 1)
    padding = " " if name.startswith("`") or name.endswith("`") else ""
    span = f"{fence}{padding}{name}{padding}{fence}"
    return span.replace("|", "\\|") if in_table else span


def code_block(text: Sequence[str]) -> str:
    """Return lines as a fenced block that none of them can close."""
    longest = max((len(run) for line in text for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *text, fence])


def _table(findings: tuple[Finding, ...], root: Path) -> str:
    rows = ["| # | Finding | Where | Saves a step | Effort | Risk |", "|--:|---|---|--:|---|---|"]
    for rank, finding in enumerate(findings, start=1):
        module = code(finding.site.module_path, in_table=True)
        cells = (
            str(rank),
            f"**{finding.rule}** {prose(title(finding))}",
            code(location(finding.site, root), in_table=True) + (f"<br>{module}" if module else ""),
            "<br>".join(prose(line) for line in impact(finding).lines),
            finding.effort.value,
            finding.risk.value,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _details(rank: int, finding: Finding, root: Path) -> str:
    summary = f"{rank}. {finding.rule} {title(finding)}"
    body = [
        f"<details><summary>{raw_html(summary)}</summary>",
        f"{code(place(finding.site, root))}, {frequency(finding)}, severity {finding.severity.value}, "
        f"confidence {finding.confidence:.2f}",
        *(
            code_block(block.lines) if isinstance(block, CodeBlock) else marked(block.runs)
            for block in blocks(finding.fix)
        ),
    ]
    if finding.evidence:
        body.append("\n".join(f"- {marked(runs(evidence_line(fact)))}" for fact in strongest_evidence(finding)))
    return "\n\n".join([*body, "</details>"])


def _comparison(predicted: tuple[Copy, ...], observed: tuple[Copy, ...], root: Path) -> str:
    rows = compare(predicted, observed)
    if not rows:
        return "### Predicted beside observed\n\nNo layout copy was predicted and none was observed."
    table = ["| Call site | Predicted | Observed | |", "|---|--:|--:|---|"]
    table += [
        f"| {code(location(row.site, root), in_table=True)} | {_amount(row.predicted_count, row.predicted_bytes)} "
        f"| {_amount(row.observed_count, row.observed_bytes)} | {row.agreement.value} |"
        for row in rows[:SITES_SHOWN]
    ]
    counts = ", ".join(f"{count} {kind.value}" for kind, count in agreement_counts(rows).items() if count)
    more = f" The {SITES_SHOWN} largest are shown." if len(rows) > SITES_SHOWN else ""
    return "\n\n".join(
        ["### Predicted beside observed", "\n".join(table), f"{plural(len(rows), 'call site')}: {counts}.{more}"]
    )


def _amount(count: int | None, size: int | None) -> str:
    return "–" if count is None else f"{count:,}×, {byte_count(size)}"
