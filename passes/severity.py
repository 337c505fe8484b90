"""How severe a finding is, from the share of a step's memory traffic that it wastes."""

from __future__ import annotations

from frx_graph.records import Saving, Severity

HIGH_SHARE = 0.10
"""At a tenth of a memory-bound step's traffic a fix shows in throughput beyond run-to-run noise of a few percent."""
MEDIUM_SHARE = 0.02


def severity_of(wasted_bytes: int | None, step_bytes: int) -> Severity:
    """HIGH, MEDIUM or LOW by share of traffic; INFO where the waste is unknown or nothing."""
    if not wasted_bytes or step_bytes <= 0:
        return Severity.INFO
    share = wasted_bytes / step_bytes
    if share >= HIGH_SHARE:
        return Severity.HIGH
    return Severity.MEDIUM if share >= MEDIUM_SHARE else Severity.LOW


def predicted_saving(min_bytes: int, max_bytes: int, step_bytes: int) -> Saving:
    """The prediction in percent of the step's traffic, capped at 100."""
    if step_bytes <= 0:
        return Saving()
    return Saving(
        predicted_pct_min=min(100.0, 100.0 * min_bytes / step_bytes),
        predicted_pct_max=min(100.0, 100.0 * max_bytes / step_bytes),
    )
