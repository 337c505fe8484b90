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
from frx_graph.reports.advice.fix_document import FixDocument, FixPart
from frx_graph.reports.render.marked_text import split_lines
from frx_graph.reports.render.quantities import format_count
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
_REASON_LENGTH = 300
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


def render_github(advice: Advice, *, root: Path) -> str:
    """Return one line per finding, best first, then a summary line. Files are relative to `root`, the checkout.

    Files outside the checkout cannot be annotated, so the message names the file.
    """
    commands = [_format_annotation(finding, root) for finding in advice.findings]
    commands.append(_format_summary(advice, root))
    return "".join(f"{command}\n" for command in commands)


def render_fixes_for_github(document: FixDocument) -> str:
    """Return one line for each change of the source, at the lines that it changes, then a summary line."""
    commands = [_format_fix(fix) for fix in document.fixes]
    count = format_count(len(document.fixes), "change")
    left = format_count(len(document.not_fixed), "finding")
    commands.append(
        _format_command("notice", {"title": "frx fix"}, f"{count} for {document.target}; {left} not fixable")
    )
    return "".join(f"{command}\n" for command in commands)


def _format_fix(fix: FixPart) -> str:
    first, last = fix.edits[0], fix.edits[-1]
    rules = ", ".join(dict.fromkeys(finding.rule for finding in fix.findings))
    properties = {
        "file": clean_line(fix.findings[0].file, len(fix.findings[0].file)),
        "line": str(first.start_line),
        "endLine": str(last.end_line),
        "title": f"{rules} {fix.state.value}",
    }
    reason = [clean_line(fix.reason, _REASON_LENGTH)] if fix.reason else []
    return _format_command("notice", properties, "\n".join([*reason, *split_lines(fix.diff)]))


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
    if offered := wording.describe_offer(finding):
        message += [f"frx fix: {offered}", ""]
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
