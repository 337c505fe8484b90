"""Render advice as SARIF 2.1.0, for code scanning and editors.

Property names and their meaning:
https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/sarif-v2.1.0-errata01-os.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from urllib.parse import quote

from frx_graph.advice import Advice
from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.records import Finding, Fixability, FixOffer, Refusal, Severity, SourceEdit
from frx_graph.reports.advice import wording
from frx_graph.reports.advice.fingerprint import compute_fingerprints
from frx_graph.reports.render.marked_text import split_lines
from frx_graph.reports.render.quantities import drop_non_finite
from frx_graph.reports.render.source_path import get_project_path
from frx_graph.rules.rule_card import RuleCard
from frx_graph.support.plain_text import clean_line, escape_surrogates

Json = Mapping[str, "Json"] | list["Json"] | str | int | float | bool | None
"""Plain JSON values: this package writes SARIF but never reads it."""

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
SOURCE_ROOT = "%SRCROOT%"
FINGERPRINT = "frxFinding/v1"
_FILE_SUFFIXES = frozenset({".py", ".json", ".gz"})
_LEVEL = {Severity.HIGH: "warning", Severity.MEDIUM: "warning", Severity.LOW: "note", Severity.INFO: "note"}


def render_sarif(advice: Advice, *, root: Path, cards: wording.Cards) -> str:
    """Return one run with a result per finding. Files under `root` are relative to it; `cards` are the rule cards by
    code."""
    codes = sorted({finding.rule for finding in advice.findings} | cards.keys())
    marks = compute_fingerprints(advice.findings, root)
    document: Json = {
        "$schema": SCHEMA_URI,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "frx-graph",
                        "semanticVersion": advice.environment.frx_version,
                        "rules": [_build_rule(code, cards.get(code)) for code in codes],
                    }
                },
                "invocations": [_build_invocation(advice, root)],
                "originalUriBaseIds": {SOURCE_ROOT: {"description": {"text": "The root of the checkout."}}},
                "columnKind": "unicodeCodePoints",
                "results": [
                    _build_result(
                        finding,
                        codes.index(finding.rule),
                        mark,
                        _build_location(finding.site, advice.target, root),
                        root,
                    )
                    for finding, mark in zip(advice.findings, marks, strict=True)
                ],
                "properties": _build_run_properties(advice),
            }
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def _build_rule(code: str, card: RuleCard | None) -> Json:
    if card is None:
        return {"id": code}
    sections = (("What", card.what), ("Why it costs", card.why), ("Fix", card.fix), ("Safety", card.safety))
    references = [f"- <{url}>" for url in card.references]
    markdown = [f"**{heading}**\n\n{text}" for heading, text in sections]
    markdown.append(f"**Before**\n\n```python\n{card.example.before}\n```")
    markdown.append(f"**After**\n\n```python\n{card.example.after}\n```")
    markdown.append("**References**\n\n" + "\n".join(references))
    return {
        "id": code,
        "name": card.name,
        "shortDescription": {"text": card.title},
        "fullDescription": {"text": card.what},
        "help": {"text": "\n\n".join(f"{h}: {t}" for h, t in sections), "markdown": "\n\n".join(markdown)},
        "helpUri": card.references[0],
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["performance", "memory-layout"], "effort": card.effort.value, "risk": card.risk.value},
    }


def _build_result(finding: Finding, rule_index: int, mark: str, location: Json, root: Path) -> Json:
    fix = " ".join(line.strip() for line in split_lines(finding.fix) if line)
    impact = f"{wording.describe_impact(finding).sentence}, {wording.format_frequency(finding)}"
    message = f"{wording.format_title(finding)}: {impact}. {fix}"
    expected = finding.saving
    share = next(
        (pct for pct in map(drop_non_finite, (expected.predicted_pct_max, expected.measured_pct)) if pct is not None),
        None,
    )
    fixes = {"fixes": _build_fixes(finding.offer, root)} if finding.offer is not None and finding.offer.edits else {}
    return {
        **fixes,
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "kind": "fail",
        "level": _LEVEL[finding.severity],
        # "rank" is SARIF's priority, 0 to 100; -1 is its word for unknown.
        "rank": -1.0 if share is None else min(max(share, 0.0), 100.0),
        "message": {"text": message},
        "locations": [location],
        "partialFingerprints": {FINGERPRINT: mark},
        "occurrenceCount": max(finding.count_per_step or 1, 1),
        "properties": {
            "severity": finding.severity.value,
            "bytesPerStep": finding.bytes_per_step,
            "countPerStep": finding.count_per_step,
            "predictedSavingPctMin": drop_non_finite(expected.predicted_pct_min),
            "predictedSavingPctMax": drop_non_finite(expected.predicted_pct_max),
            "measuredSavingPct": drop_non_finite(expected.measured_pct),
            "basis": finding.basis.value,
            "effort": finding.effort.value,
            "risk": finding.risk.value,
            "fixability": None if finding.offer is None else finding.offer.fixability.value,
            "confidence": finding.confidence,
            "modules": [clean_line(module) for module in finding.modules],
            "evidence": [wording.format_evidence(fact) for fact in wording.sort_evidence(finding)],
        },
    }


def _build_fixes(offer: FixOffer, root: Path) -> Json:
    """Return the change of the source as one fix. Regions end behind their last character."""
    files = dict.fromkeys(edit.file for edit in offer.edits)
    unsafe = " (changes more than speed)" if offer.fixability is Fixability.UNSAFE else ""
    return [
        {
            "description": {"text": f"frx fix: {offer.fixer}{unsafe}"},
            "artifactChanges": [
                {
                    "artifactLocation": _build_artifact(file, root),
                    "replacements": [_build_replacement(edit) for edit in offer.edits if edit.file == file],
                }
                for file in files
            ],
        }
    ]


def _build_replacement(edit: SourceEdit) -> Json:
    return {
        "deletedRegion": {
            "startLine": edit.start_line,
            "startColumn": edit.start_column,
            "endLine": edit.end_line,
            "endColumn": edit.end_column,
        },
        "insertedContent": {"text": edit.text},
    }


def _build_location(site: CallSite, target: str, root: Path) -> Json:
    """Return a physical location, which code scanning requires: an unknown call site becomes the target's file."""
    known = site.file != UNKNOWN_SITE.file
    physical: dict[str, Json] = {
        "artifactLocation": _build_artifact(site.file if known else _get_target_file(target), root)
    }
    if known and site.line > 0:
        physical["region"] = {"startLine": site.line}
    location: dict[str, Json] = {"physicalLocation": physical}
    names = ((site.function, "function"), (site.module_path, "module"))
    logical: list[Json] = [
        {"fullyQualifiedName": clean_line(name), "kind": kind}
        for name, kind in names
        if clean_line(name) and name != UNKNOWN_SITE.function
    ]
    if logical:
        location["logicalLocations"] = logical
    return location


def _get_target_file(target: str) -> str:
    """Return the file of `file.py:callable` or `package.module:callable`; for a trace, the trace itself."""
    place = target.rpartition(":")[0] or target
    return place if "/" in place or PurePath(place).suffix in _FILE_SUFFIXES else f"{place.replace('.', '/')}.py"


def _build_artifact(file: str, root: Path) -> Json:
    relative = get_project_path(file, root)
    if relative is not None:
        return {"uri": _encode_uri_path(relative), "uriBaseId": SOURCE_ROOT}
    if PurePath(file).is_absolute():
        return {"uri": f"file://{_encode_uri_path(file)}"}
    return {"uri": _encode_uri_path(file)}


def _encode_uri_path(path: str) -> str:
    return quote(escape_surrogates(path).replace("\\", "/"), safe="/")


def _build_invocation(advice: Advice, root: Path) -> Json:
    analysed = wording.classify_outcome(advice) is not wording.Outcome.NOTHING_ANALYSED
    invocation: dict[str, Json] = {"executionSuccessful": analysed}
    notes: list[Json] = [_build_notification(refusal, analysed, advice.target, root) for refusal in advice.refusals]
    if not analysed:
        notes.insert(0, {"level": "error", "message": {"text": wording.format_headline(advice)}})
    if notes:
        invocation["toolExecutionNotifications"] = notes
    return invocation


def _build_notification(refusal: Refusal, analysed: bool, target: str, root: Path) -> Json:
    note: dict[str, Json] = {
        "level": "note" if analysed else "error",
        "message": {"text": f"{clean_line(refusal.subject)}: {clean_line(refusal.reason, 600)}"},
    }
    if refusal.site is not None:
        note["locations"] = [_build_location(refusal.site, target, root)]
    return note


def _build_run_properties(advice: Advice) -> Json:
    totals = advice.totals
    return {
        "target": clean_line(advice.target),
        "torchVersion": advice.environment.torch_version,
        "device": clean_line(advice.environment.device),
        "inner": clean_line(advice.environment.inner),
        "opsScanned": totals.ops_scanned,
        "copiesPerStep": totals.copies_per_step,
        "copyBytesPerStep": totals.copy_bytes_per_step,
        "bandwidthOverheadPct": drop_non_finite(totals.bandwidth_overhead_pct),
        "quickWins": totals.quick_wins,
    }
