"""Compare what two recordings cost in a step: the totals of advice, or the findings of a run or trace."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.analyzers.run_change.recording import (
    COPY_TRAFFIC,
    MEMORY_TRAFFIC,
    KnownProblem,
    Recording,
    RecordKind,
)
from frx_graph.support.plain_text import format_bytes

_NOISE = 0.1
"""Smallest relative change of a finding's cost that counts: a choice, above the percents by which times vary."""
_SHARE = 0.01
"""Smallest change of a total that counts, and of all findings' time beside the step: a choice."""
_TOTALS = ((MEMORY_TRAFFIC, "its operators move"), (COPY_TRAFFIC, "its layout copies move"))
"""The totals that judge advice. The first one that differs decides, since it includes the other."""


@dataclass(frozen=True, slots=True)
class CostDifference:
    """Increase of a step's cost from the first side to the second, in `ms` or `byte`; negative: a decrease; 0: within
    the noise."""

    amount: float
    unit: str
    subject: str = "its findings cost"

    def describe(self) -> str:
        """Return the difference in words."""
        size = abs(self.amount)
        amount = f"{size:.3g} ms" if self.unit == "ms" else format_bytes(round(size))
        return f"{self.subject} {amount} a step {'more' if self.amount > 0 else 'less'}"


@dataclass(frozen=True, slots=True)
class FindingChange:
    """Findings that only the first side has, that only the second has, and that both have."""

    gone: tuple[KnownProblem, ...]
    new: tuple[KnownProblem, ...]
    kept: tuple[tuple[KnownProblem, KnownProblem], ...]

    def leave_out(self, rules: frozenset[str]) -> FindingChange:
        """Return the change without the findings of some rules."""
        return FindingChange(
            tuple(one for one in self.gone if one.rule not in rules),
            tuple(one for one in self.new if one.rule not in rules),
            tuple(pair for pair in self.kept if pair[0].rule not in rules),
        )


def compare_costs(before: Recording, after: Recording, findings: FindingChange) -> CostDifference | None:
    """Return by how much the cost of a step differs; None if that is not known.

    Advice is judged by its totals: what findings cost there depends on how the program was advised. Without totals, and
    in runs and traces, the findings are compared.
    """
    totals = _compare_totals(before, after) if before.kind is RecordKind.ADVICE else None
    return totals or _compare_findings(findings, before.step_ms or after.step_ms)


def _compare_totals(before: Recording, after: Recording) -> CostDifference | None:
    found = None
    for name, subject in _TOTALS:
        old, new = (side.costs[name].value if name in side.costs else None for side in (before, after))
        if old is not None and new is not None:
            differs = abs(new - old) > _SHARE * max(old, new)
            found = CostDifference(new - old if differs else 0.0, "byte", subject)
            if differs:
                return found
    return found


def _compare_findings(findings: FindingChange, step_ms: Sequence[float]) -> CostDifference | None:
    """Compare measured times, or else traffic, where it is known of all findings that are gone or new.

    These are compared as one, since a finding that moves to another file is both gone and new.
    """
    for unit, name in (("ms", "ms_per_step"), ("byte", "bytes_per_step")):
        gone, new = ([getattr(one, name) for one in side] for side in (findings.gone, findings.new))
        kept = [(getattr(old, name), getattr(one, name)) for old, one in findings.kept]
        known = [pair for pair in kept if None not in pair]
        if None in gone or None in new or not (gone or new or known):
            continue
        pairs = [(sum(gone), sum(new)), *known]
        amount = sum(one - old for old, one in pairs if abs(one - old) > _NOISE * max(old, one))
        timed = unit == "ms" and step_ms
        whole = statistics.median(step_ms) if timed else max(map(sum, zip(*pairs, strict=True)))
        return CostDifference(amount if abs(amount) > _SHARE * whole else 0.0, unit)
    return None
