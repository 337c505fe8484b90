"""What an advice says on the whole. An analysis that saw nothing never reads like a program without problems."""

from __future__ import annotations

import enum

from frx_graph.advice import Advice
from frx_graph.reports.render.quantities import byte_count, finite, percent, plural


class Outcome(enum.StrEnum):
    """The four things that an advice can amount to."""

    FINDINGS = "findings"
    CLEAN = "clean"
    PARTIAL = "partial"
    """No findings to show, but something was left alone: not judged, or hidden on request."""
    NOTHING_ANALYSED = "nothing analysed"


def outcome_of(advice: Advice) -> Outcome:
    """FINDINGS wins; without findings, what was scanned and what was refused decide."""
    if advice.findings:
        return Outcome.FINDINGS
    if not advice.totals.ops_scanned:
        return Outcome.NOTHING_ANALYSED
    return Outcome.PARTIAL if advice.refusals else Outcome.CLEAN


def headline(advice: Advice) -> str:
    """The outcome in one sentence."""
    totals = advice.totals
    scanned = plural(totals.ops_scanned, "operator")
    match outcome_of(advice):
        case Outcome.NOTHING_ANALYSED:
            why = f" {plural(len(advice.refusals), 'reason')} below." if advice.refusals else ""
            return f"Nothing was analysed: not one operator was captured.{why}"
        case Outcome.PARTIAL:
            left = plural(len(advice.refusals), "thing")
            return f"No findings to show in {scanned}; {left} left alone, see below."
        case Outcome.CLEAN:
            return f"No findings in {scanned}."
        case Outcome.FINDINGS:
            count = plural(len(advice.findings), "finding")
            wins = plural(totals.quick_wins, "quick win")
            return f"{count} in {scanned}, {wins} among them."


def copies_sentence(advice: Advice) -> str:
    """The predicted layout copies of a step, their bytes and their share of its traffic."""
    totals = advice.totals
    share = finite(totals.bandwidth_overhead_pct)
    return (
        f"{plural(totals.copies_per_step, 'layout copy', 'layout copies')} a step, "
        f"{byte_count(totals.copy_bytes_per_step)}, "
        f"{'an unknown share' if share is None else percent(share)} of its memory traffic"
    )
