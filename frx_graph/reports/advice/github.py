"""The advice as GitHub Actions workflow commands: annotations on the lines of a pull request.

Syntax and escaping: https://docs.github.com/actions/reference/workflow-commands-for-github-actions and the runner's
`ActionCommandManager` (https://github.com/actions/toolkit/blob/main/packages/core/src/command.ts).
"""

from __future__ import annotations

from pathlib import Path

from frx_graph.advice import Advice
from frx_graph.capture.call_site import CallSite
from frx_graph.records import Finding, Severity
from frx_graph.reports.advice import wording
from frx_graph.reports.render.marked_text import split_lines
from frx_graph.reports.render.source_path import get_project_path
from frx_graph.support.plain_text import clean_line

_LEVEL = {Severity.HIGH: "warning", Severity.MEDIUM: "warning", Severity.LOW: "notice", Severity.INFO: "notice"}
_SUMMARY_LEVEL = {
    wording.Outcome.FINDINGS: "notice",
    wording.Outcome.CLEAN: "notice",
    wording.Outcome.PARTIAL: "warning",
    wording.Outcome.NOTHING_ANALYSED: "error",
}
_SUBJECTS_SHOWN = 10
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


def render_github(advice: Advice, *, root: Path) -> str:
    """Return one line per finding, best first, then a summary line. Files are relative to `root`, the checkout.

    Files outside the checkout cannot be annotated, so the message names the file.
    """
    commands = [_format_annotation(finding, root) for finding in advice.findings]
    commands.append(_format_summary(advice, root))
    return "".join(f"{command}\n" for command in commands)


def _format_command(level: str, properties: dict[str, str], message: str) -> str:
    written = ",".join(f"{key}={value.translate(_PROPERTY)}" for key, value in properties.items())
    return f"::{level} {written}::{message.translate(_DATA)}"


def _format_annotation(finding: Finding, root: Path) -> str:
    properties = {**_get_position(finding.site, root), "title": f"{finding.rule} {wording.format_title(finding)}"}
    impact = f"{wording.describe_impact(finding).sentence}, {wording.format_frequency(finding)}"
    message = [
        f"{impact}; effort {finding.effort.value}, risk {finding.risk.value}",
        f"at {wording.format_finding_place(finding, root)}",
    ]
    if finding.site.module_path:
        message.append(f"in {clean_line(finding.site.module_path)}")
    message += ["", *split_lines(finding.fix), ""]
    message += [wording.format_evidence(fact) for fact in wording.sort_evidence(finding)]
    return _format_command(_LEVEL[finding.severity], properties, "\n".join(message).rstrip())


def _get_position(site: CallSite, root: Path) -> dict[str, str]:
    file = get_project_path(site.file, root)
    if file is None:
        return {}
    return {"file": clean_line(file, len(file))} | ({"line": str(site.line)} if site.line else {})


def _format_summary(advice: Advice, root: Path) -> str:
    outcome = wording.classify_outcome(advice)
    message = [wording.format_headline(advice)]
    if outcome is not wording.Outcome.NOTHING_ANALYSED:
        message.append(f"{wording.describe_copies(advice)}.")
    message += [
        f"Left alone: {group.format_subjects(_SUBJECTS_SHOWN)}: {group.reason}"
        for group in wording.group_refusals(advice.refusals, root)
    ]
    return _format_command(_SUMMARY_LEVEL[outcome], {"title": "frx-graph"}, "\n".join(message))
