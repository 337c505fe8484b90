"""Compare what the findings of two recordings cost in a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.run_change.recording import KnownProblem, Recording, RecordKind
from frx_graph.support.plain_text import format_bytes

_NOISE = 0.01
"""Smallest relative change of the cost that counts if no finding is new or resolved: a choice."""


@dataclass(frozen=True, slots=True)
class CostDifference:
    """Increase of a step's cost from the first side to the second, in `ms` or `byte`; negative: a decrease."""

    amount: float
    unit: str
    subject: str = "its findings cost"

    def describe(self) -> str:
        """Return the difference in words."""
        size = abs(self.amount)
        amount = f"{size:.3g} ms" if self.unit == "ms" else format_bytes(round(size))
        return f"{self.subject} {amount} a step {'more' if self.amount > 0 else 'less'}"


def compare_finding_costs(
    before: Recording, after: Recording, gone: Sequence[KnownProblem], new: Sequence[KnownProblem]
) -> CostDifference | None:
    """Return by how much the cost of findings differs; None if that is not known.

    Advice is judged by the traffic of all findings or of all layout copies, whichever differs more: findings may waste
    traffic without a copy, and a selection of rules hides findings. Runs and traces are judged by the measured time of
    findings that are new or resolved, or else by their traffic.
    """
    if before.kind is RecordKind.ADVICE:
        return _compare_advice(before, after, gone, new)
    if not gone and not new:
        return None
    for unit, name in (("ms", "ms_per_step"), ("byte", "bytes_per_step")):
        values = [getattr(one, name) for one in (*gone, *new)]
        if None not in values:
            return CostDifference(sum(values[len(gone) :]) - sum(values[: len(gone)]), unit)
    return None


def _compare_advice(
    before: Recording, after: Recording, gone: Sequence[KnownProblem], new: Sequence[KnownProblem]
) -> CostDifference | None:
    old = sum_known_bytes(before.problems.values())
    found = [(CostDifference(sum_known_bytes(after.problems.values()) - old, "byte"), old)]
    if before.copy_bytes is not None and after.copy_bytes is not None:
        copied = CostDifference(after.copy_bytes - before.copy_bytes, "byte", "its layout copies move")
        found.append((copied, before.copy_bytes))
    most, base = max(found, key=lambda one: abs(one[0].amount))
    if not most.amount and any(one.bytes_per_step is None for one in (*gone, *new)):
        return None
    noise = not gone and not new and abs(most.amount) < _NOISE * base
    return CostDifference(0.0, "byte") if noise else most


def sum_known_bytes(problems: Iterable[KnownProblem]) -> float:
    """Return the traffic of findings in a step, without those of unknown traffic."""
    return sum(one.bytes_per_step or 0.0 for one in problems)
