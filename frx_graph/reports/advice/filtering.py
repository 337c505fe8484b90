"""Hiding findings without hiding that they were hidden."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from frx_graph.advice import Advice, is_quick_win
from frx_graph.records import Refusal
from frx_graph.reports.render.quantities import plural


def hide(advice: Advice, hidden: Iterable[int], reason: str) -> Advice:
    """The advice without the findings at the `hidden` indices; a refusal says how many there are and the `reason`.

    The copies and their totals stay: they are facts about the step, whatever is shown of it.
    """
    left_out = frozenset(hidden)
    if not left_out:
        return advice
    kept = tuple(finding for index, finding in enumerate(advice.findings) if index not in left_out)
    return replace(
        advice,
        findings=kept,
        refusals=(*advice.refusals, Refusal(plural(len(left_out), "finding"), reason)),
        totals=replace(advice.totals, quick_wins=sum(map(is_quick_win, kept))),
    )
