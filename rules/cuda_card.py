"""Cards of problems in CUDA source: cause, fix, and the counter that would confirm it.

One YAML file a rule, `cuda/<id>.yaml`; ids are stable. Its detector is `frx_graph/analyzers/cuda/<id>.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from frx_graph.rules.card_file import Prose, StrictModel, load_cards
from frx_graph.rules.recommendation_card import Direction, Identifier


class Severity(StrEnum):
    """HIGH: wrong results, or several times slower; MEDIUM: a good part of the kernel's time; LOW: what remains."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Category(StrEnum):
    """Subject of a rule."""

    MEMORY = "memory"
    SYNCHRONIZATION = "synchronization"
    CONTROL_FLOW = "control_flow"
    LAUNCH = "launch"
    OCCUPANCY = "occupancy"
    TENSOR_CORES = "tensor_cores"


class Confirmation(StrictModel):
    """Measurement that confirms the rule: `metric` is the counter's own name, or a tool's check."""

    metric: Prose
    direction: Direction
    threshold: float | None = None
    expected: Prose


class CudaCard(StrictModel):
    """One rule, for people. `confidence` is the share of correct reports on code that it was not written for
    (docs/cuda_source.md), 0..1; 0.7 if nothing was found there."""

    id: Identifier
    title: Annotated[Prose, StringConstraints(max_length=80)]
    category: Category
    severity: Severity
    why: Prose
    fix: Prose
    actions: Annotated[tuple[Prose, ...], Field(min_length=1)]
    confidence: Annotated[float, Field(gt=0.0, le=1.0)]
    confirm: Confirmation


@functools.cache
def load_cuda_cards() -> Mapping[str, CudaCard]:
    """Return every card, by id."""
    return {card.id: card for card in load_cards("cuda", CudaCard, "id")}
