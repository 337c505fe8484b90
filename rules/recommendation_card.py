"""Recommendation cards: a fix for a bottleneck, the check that it has helped, and its risks.

One YAML file a card, `recommendations/<id>.yaml`; ids are stable. A card names the labels that call for it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from frx_graph.records import Effort, Risk
from frx_graph.rules.card_file import Prose, StrictModel, load_cards

Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]


OF_TRACES = "torch.profiler: "
"""Prefix of a metric that `frx analyze` takes from a trace."""


class Direction(StrEnum):
    """Direction in which a metric moves if the advice has helped."""

    DECREASE = "decrease"
    INCREASE = "increase"
    STABLE = "stable"


class Step(StrictModel):
    """One measurement to repeat. `metric` is the counter's own name, `value` its name here."""

    metric: Prose
    value: Prose
    label: Prose
    direction: Direction
    threshold_good: float | None = None
    expected: Prose


class Condition(StrictModel):
    """A measured value that a card depends on: `at_least` this much, or `below` it. What was not measured is not at
    least anything, and below everything."""

    value: Prose
    at_least: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _check_bounds(self) -> Condition:
        if (self.at_least is None) is (self.below is None):
            raise ValueError("give one of at_least and below")
        return self

    def holds(self, values: Mapping[str, float]) -> bool:
        """Return True if the measured values meet the condition."""
        value = values.get(self.value)
        if self.at_least is not None:
            return value is not None and value >= self.at_least
        return value is None or self.below is None or value < self.below


class RecommendationCard(StrictModel):
    """One card, for people. `tier` is 0 for a setting, such as a launch's, 1 for code, 2 for the algorithm. A card is
    recommended for a label of `triggered_by` if all of `when` hold. `weight` is the part of the label's score that it
    gets: less than 1 if no record shows what the card assumes."""

    id: Annotated[str, StringConstraints(pattern=r"^rec_[a-z0-9_]+$")]
    title: Annotated[Prose, StringConstraints(max_length=80)]
    category: Identifier
    triggered_by: Annotated[tuple[Identifier, ...], Field(min_length=1)]
    when: tuple[Condition, ...] = ()
    weight: Annotated[float, Field(gt=0, le=1)] = 1.0
    why: Prose
    actions: Annotated[tuple[Prose, ...], Field(min_length=1)]
    validation: Annotated[tuple[Step, ...], Field(min_length=1)]
    effort: Effort
    risk: Risk
    tier: Annotated[int, Field(ge=0, le=2)]
    risks: tuple[Prose, ...] = ()


@functools.cache
def load_recommendations() -> tuple[RecommendationCard, ...]:
    """Return every card, ordered by id."""
    return load_cards("recommendations", RecommendationCard, "id")


@functools.cache
def index_cards_by_label() -> Mapping[str, tuple[RecommendationCard, ...]]:
    """Return the cards that each label calls for."""
    found: dict[str, tuple[RecommendationCard, ...]] = {}
    for card in load_recommendations():
        for label in card.triggered_by:
            found[label] = (*found.get(label, ()), card)
    return found
