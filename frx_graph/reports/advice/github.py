"""The advice as GitHub Actions workflow commands: annotations on the lines of a pull request.

Syntax and escaping: https://docs.github.com/actions/reference/workflow-commands-for-github-actions and the runner's
`ActionCommandManager` (https://github.com/actions/toolkit/blob/main/packages/core/src/command.ts).
"""

from __future__ import annotations

from pathlib import Path

from frx_graph.advice import Advice
from frx_graph.capture.call_site import CallSite
from frx_graph.records import Finding, Severity
from frx_graph.reports.advice.wording import (
    Outcome,
    copies_sentence,
    evidence_line,
    frequency,
    group_refusals,
    headline,
    impact,
    outcome_of,
    place,
    strongest_evidence,
    title,
)
from frx_graph.reports.render.marked_text import lines
from frx_graph.reports.render.source_path import project_path
from frx_graph.support.plain_text import one_line

_LEVEL = {Severity.HIGH: "warning", Severity.MEDIUM: "warning", Severity.LOW: "notice", Severity.INFO: "notice"}
_SUMMARY_LEVEL = {
    Outcome.FINDINGS: "notice",
    Outcome.CLEAN: "notice",
    Outcome.PARTIAL: "warning",
    Outcome.NOTHING_ANALYSED: "error",
}
_SUBJECTS_SHOWN = 10
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


def render_github(advice: Advice, *, root: Path) -> str:
    """One line a finding, best first, then one with the summary; files relative to `root`, the checkout.

    Files outside the checkout cannot be annotated: their findings name the file in the message.
    """
    commands = [_annotation(finding, root) for finding in advice.findings]
    commands.append(_summary(advice, root))
    return "".join(f"{command}\n" for command in commands)


def _command(level: str, properties: dict[str, str], message: str) -> str:
    written = ",".join(f"{key}={value.translate(_PROPERTY)}" for key, value in properties.items())
    return f"::{level} {written}::{message.translate(_DATA)}"


def _annotation(finding: Finding, root: Path) -> str:
    properties = {**_position(finding.site, root), "title": f"{finding.rule} {title(finding)}"}
    message = [
        f"{impact(finding).sentence}, {frequency(finding)}; effort {finding.effort.value}, risk {finding.risk.value}",
        f"at {place(finding.site, root)}",
    ]
    if finding.site.module_path:
        message.append(f"in {one_line(finding.site.module_path)}")
    message += ["", *lines(finding.fix), ""]
    message += [evidence_line(fact) for fact in strongest_evidence(finding)]
    return _command(_LEVEL[finding.severity], properties, "\n".join(message).rstrip())


def _position(site: CallSite, root: Path) -> dict[str, str]:
    file = project_path(site.file, root)
    if file is None:
        return {}
    return {"file": one_line(file, len(file))} | ({"line": str(site.line)} if site.line else {})


def _summary(advice: Advice, root: Path) -> str:
    outcome = outcome_of(advice)
    message = [headline(advice)]
    if outcome is not Outcome.NOTHING_ANALYSED:
        message.append(f"{copies_sentence(advice)}.")
    message += [
        f"Left alone: {group.reason}: {group.listed(_SUBJECTS_SHOWN)}"
        for group in group_refusals(advice.refusals, root)
    ]
    return _command(_SUMMARY_LEVEL[outcome], {"title": "frx-graph"}, "\n".join(message))
