"""Weigh the evidence of several layers for a diagnosis. All rules for that are here.

- One layer with a hint: low, since other conditions cause the same hint.
- One layer that is certain about the code: medium, since only a run shows the cost.
- One layer that has counted or measured it: high, since one tool may be misread, or see another build.
- Each further layer that agrees: one step up, at most to high, since tools are wrong in different ways.
- A counter, and another layer that is certain: confirmed, since one shows the effect and one the cause.

Evidence against a diagnosis has the same grades. If it is weaker, it takes one step of confidence. If it is as strong,
the layers disagree, and the diagnosis is disputed. If it is stronger, the diagnosis is refuted: a counter of whole
sectors refutes source that looks strided. Layers are compared only on the same side (`Signal.about`): a counter of
loads says nothing about stores.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from frx_graph.analyzers.reconcile.signal import EVERYTHING, Grade, Layer, Signal

ConfidenceLabel = Literal["low", "medium", "high", "confirmed"]


class Confidence(enum.IntEnum):
    """Confidence in a diagnosis that holds."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CONFIRMED = 4

    @property
    def label(self) -> ConfidenceLabel:
        """Return the name in lower case."""
        return cast("ConfidenceLabel", self.name.lower())


class Standing(enum.StrEnum):
    """Outcome of a diagnosis."""

    HOLDS = "holds"
    DISPUTED = "disputed"
    """The evidence against it is as strong as that for it."""
    REFUTED = "refuted"
    UNSUPPORTED = "unsupported"
    """The evidence also has other causes, and no layer points to this one."""


_BY_ITSELF = {
    Grade.HINT: Confidence.LOW,
    Grade.CERTAIN: Confidence.MEDIUM,
    Grade.COUNTED: Confidence.HIGH,
    Grade.MEASURED: Confidence.HIGH,
}


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a diagnosis; `confidence` is None if it does not hold. Signals are strongest first."""

    about: str
    standing: Standing
    confidence: Confidence | None
    agreeing: tuple[Signal, ...]
    contradicting: tuple[Signal, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """All sides, the surest first."""

    sides: tuple[Side, ...]

    @property
    def standing(self) -> Standing:
        """Return the standing of the surest side."""
        return self.sides[0].standing

    @property
    def confidence(self) -> Confidence | None:
        """Return the confidence of the surest side; None if none holds."""
        return self.sides[0].confidence

    @property
    def agreeing(self) -> tuple[Signal, ...]:
        """Return the signals for the sides that hold."""
        return tuple(dict.fromkeys(signal for side in self._holding for signal in side.agreeing))

    @property
    def contradicting(self) -> tuple[Signal, ...]:
        """Return the signals against them."""
        return tuple(dict.fromkeys(signal for side in self._holding for signal in side.contradicting))

    @property
    def _holding(self) -> tuple[Side, ...]:
        return tuple(side for side in self.sides if side.standing is Standing.HOLDS)


def judge(signals: Iterable[Signal]) -> Judgement | None:
    """Judge one diagnosis of one kernel; None without a signal for it."""
    known = sorted(signals, key=_sort_strongest_first)
    abouts = dict.fromkeys(one.about for one in known if one.supports)
    sides = [_judge_side(about, known) for about in abouts]
    sides.sort(key=lambda side: (list(Standing).index(side.standing), -(side.confidence or 0), side.about))
    return Judgement(tuple(sides)) if sides else None


def _sort_strongest_first(signal: Signal) -> tuple[int, int, str, str, str, int, bool]:
    place = list(Layer).index(signal.layer)
    return -signal.grade, place, signal.label, signal.about, signal.evidence, signal.line or 0, signal.alone


def _judge_side(about: str, known: Sequence[Signal]) -> Side:
    mine = [one for one in known if one.about in (about, EVERYTHING)]
    agreeing = tuple(one for one in mine if one.supports)
    contradicting = tuple(one for one in mine if not one.supports)
    standing, confidence = Standing.HOLDS, None
    against = contradicting[0].grade if contradicting else 0
    if not any(one.alone for one in agreeing):
        standing = Standing.UNSUPPORTED
    elif against >= agreeing[0].grade:
        standing = Standing.REFUTED if against > agreeing[0].grade else Standing.DISPUTED
    else:
        confidence = Confidence(max(Confidence.LOW, _compute_confidence(agreeing) - bool(contradicting)))
    return Side(about, standing, confidence, agreeing, contradicting)


def _compute_confidence(agreeing: Sequence[Signal]) -> Confidence:
    """Combine signals, strongest first."""
    strongest = {one.layer: one.grade for one in reversed(agreeing)}
    sure = [grade for grade in strongest.values() if grade >= Grade.CERTAIN]
    own = max(one.grade for one in agreeing if one.alone)
    if own >= Grade.CERTAIN and len(sure) > 1 and Grade.MEASURED in sure:
        return Confidence.CONFIRMED
    return Confidence(min(Confidence.HIGH, _BY_ITSELF[own] + (len(strongest) > 1)))
