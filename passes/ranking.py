"""The order in which findings are shown."""

from __future__ import annotations

from collections.abc import Iterable

from frx_graph.records import Finding, Severity

_SEVERITY_ORDER = {Severity.HIGH: 0, Severity.MEDIUM: 1, Severity.LOW: 2, Severity.INFO: 3}


def rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """By severity, highest first, which is the share of the step's traffic that is wasted, or an equal harm of another
    kind; within one severity by the traffic that the fix is expected to save, most first.

    Ties are broken by bytes and call site, so that the same program is always reported in the same order.
    """

    def key(finding: Finding) -> tuple[int, float, int, str, int, str]:
        return (
            _SEVERITY_ORDER[finding.severity],
            -expected_saving_pct(finding),
            -(finding.bytes_per_step or 0),
            finding.site.file,
            finding.site.line,
            finding.rule,
        )

    return tuple(sorted(findings, key=key))


def expected_saving_pct(finding: Finding) -> float:
    """Percent of the step: what was measured, else the middle of the predicted range, weighted by how sure the
    finding is; 0 where nothing is known."""
    if finding.saving.measured_pct is not None:
        return finding.saving.measured_pct
    least, most = finding.saving.predicted_pct_min, finding.saving.predicted_pct_max
    if least is None or most is None:
        return 0.0
    return finding.confidence * (least + most) / 2
