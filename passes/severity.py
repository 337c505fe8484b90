"""Grade findings by the share of a step that they waste, and order them for the report."""

from __future__ import annotations

from collections.abc import Iterable

from frx_graph.records import Finding, Saving, Severity

HIGH_SHARE = 0.10
"""At a tenth of a memory-bound step's traffic a fix shows in throughput beyond run-to-run noise of a few percent."""
MEDIUM_SHARE = 0.02


def grade_bytes(wasted_bytes: int | None, step_bytes: int) -> Severity:
    """Return HIGH, MEDIUM or LOW by share of traffic; INFO if the waste is unknown or zero."""
    return grade_share(wasted_bytes / step_bytes if wasted_bytes and step_bytes > 0 else None)


def grade_share(share: float | None) -> Severity:
    """Return the severity of a share from 0 to 1 of the step."""
    if not share:
        return Severity.INFO
    if share >= HIGH_SHARE:
        return Severity.HIGH
    return Severity.MEDIUM if share >= MEDIUM_SHARE else Severity.LOW


def predict_saving(min_bytes: int, max_bytes: int, step_bytes: int) -> Saving:
    """Return the prediction in percent of the step's traffic, capped at 100."""
    if step_bytes <= 0:
        return Saving()
    return Saving(
        predicted_pct_min=min(100.0, 100.0 * min_bytes / step_bytes),
        predicted_pct_max=min(100.0, 100.0 * max_bytes / step_bytes),
    )


_SEVERITY_ORDER = {severity: place for place, severity in enumerate(Severity)}


def rank_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, then by the traffic that the fix is expected to save, most first.

    Ties are broken by bytes and call site, so that the same program is always reported in the same order.
    """
    graded = sorted(findings, key=lambda f: (-(f.bytes_per_step or 0), f.site.file, f.site.line, f.rule))
    return tuple(sorted(graded, key=lambda f: (_SEVERITY_ORDER[f.severity], -estimate_saving_pct(f))))


def estimate_saving_pct(finding: Finding) -> float:
    """Return the saving in percent of the step: as measured, else the middle of the predicted range, weighted by
    confidence; 0 if unknown."""
    if finding.saving.measured_pct is not None:
        return finding.saving.measured_pct
    least, most = finding.saving.predicted_pct_min, finding.saving.predicted_pct_max
    if least is None or most is None:
        return 0.0
    return finding.confidence * (least + most) / 2
