"""The inner compiler, and its own switches for layout, as candidates like any other.

Why: which compiler is fastest for a graph, and whether its layout choice is right, no rule knows: plain eager beats
Inductor where convolutions are deep and images small, freezing wins where weights are large.
How: nothing in the graph changes; a candidate names options for `torch.compile(model, backend="frx", options=...)`, or,
where weights become constants, for `frx_graph.compile`. Measured operators cannot price what a compiler does around
them, so none of these is part of a plan before a trial has run it.
Assumes: that the program may be compiled as a whole by each of the choices.
Safe: each of them is the inner compiler as torch has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "inner_choice"
_LAID_OUT_BY_INDUCTOR = frozenset({"aten.convolution", "aten.convolution_backward"})
"""What `GraphLowering.decide_layout_opt` of torch 2.15 looks for; older ones look for the first only."""


@dataclass(frozen=True, slots=True)
class InnerChoice:
    """One way to compile a graph, as options of ours. `lays_out` says that it is about convolutions."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    lays_out: bool = False


CHOICES: tuple[InnerChoice, ...] = (
    InnerChoice("inductor, layout optimization on", {"inner_options": {"layout_optimization": True}}, lays_out=True),
    InnerChoice("inductor, layout optimization off", {"inner_options": {"layout_optimization": False}}, lays_out=True),
    InnerChoice(
        "inductor, layout optimization forced",
        {"inner_options": {"layout_optimization": True, "force_layout_optimization": True}},
        lays_out=True,
    ),
    InnerChoice("inductor, weights frozen", {"freeze": True}),
    InnerChoice("eager", {"inner": "eager"}),
)
_BY_NAME = {choice.name: choice for choice in CHOICES}


def inner_choices(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """A candidate for each choice that could matter to the graph, and why the others cannot."""
    facts = subject.facts
    convolutions = tuple(op.node for op in facts.ops if op.operator in _LAID_OUT_BY_INDUCTOR)
    for choice in CHOICES:
        reason = _reason_against(choice, facts, convolutions)
        if reason is None:
            yield Candidate(NAME, facts.graph_id, convolutions if choice.lays_out else (), (choice.name,))
        else:
            yield Refusal(choice.name, reason)


def options_of(candidate: Candidate) -> Mapping[str, Any]:
    """The options that a candidate of `inner_choices` stands for. Raises `KeyError` for another."""
    (name,) = candidate.choices
    return _BY_NAME[name].options


def _reason_against(choice: InnerChoice, facts: GraphFacts, convolutions: tuple[str, ...]) -> str | None:
    if choice.lays_out and not convolutions:
        return "Inductor lays out convolutions only, and the graph has none"
    if choice.options.get("freeze"):
        if facts.train:
            return "weights that are trained are no constants"
        if not any(facts.values[name].is_parameter for name in facts.inputs if name in facts.values):
            return "the graph reads no weights"
    return None
