"""The order in which findings are shown."""

from __future__ import annotations

from collections.abc import Iterable

from frx_graph.records import Finding, Severity

_SEVERITY_ORDER = {Severity.HIGH: 0, Severity.MEDIUM: 1, Severity.LOW: 2, Severity.INFO: 3}


def rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """By severity, highest first, then by the bytes that the fix is expected to save per step, most first.

    A finding whose traffic is unknown stands after those of its severity whose traffic is known; ties are broken by
    call site, so that the same program is always reported in the same order.
    """

    def key(finding: Finding) -> tuple[int, int, str, int, str]:
        saved = finding.bytes_per_step
        known = -saved if saved is not None else 0
        return (_SEVERITY_ORDER[finding.severity], known, finding.site.file, finding.site.line, finding.rule)

    return tuple(sorted(findings, key=key))
