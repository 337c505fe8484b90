"""Candidates that change the inner compiler, or its own layout switches.

Why: no rule knows which compiler is fastest for a graph, or whether its layout choice is right. Plain eager beats
Inductor if convolutions are deep and images small; freezing wins if weights are large. How: a candidate names backend
options. The graph stays the same, except that freezing makes its weights constants. Measured operators cannot price
what a compiler does around them, so a trial decides about each. Assumes: each choice may compile the whole program.
Safe: each is an inner compiler as torch has it, or eager with rewrites; constant weights are guarded. Pooled allocation
changes no graph: the process keeps the memory that it frees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.operator_families import CONVOLUTIONS, MATRIX_PRODUCTS
from frx_graph.records import Candidate, Refusal
from frx_graph.support.allocator import SMALLEST_RETURNED_BYTES, Allocation

NAME = "inner_choice"
POOLED = "pooled_allocation"
"""The choice that makes the process keep freed memory, whatever compiles its graphs."""
CPP = "freezing_cpp_wrapper"
"""The choice that freezes weights, and calls the kernels from C++, which is less work for each operator. First calls of
six networks took 4 to 13 s more."""
FROZEN_INDUCTOR = ("freezing", CPP)
"""Inductor's choices with constant weights."""
EVERY_GRAPH = ""
"""The `graph_id` of these candidates: they are about all graphs that a plan is for, forward and backward alike."""


@dataclass(frozen=True, slots=True)
class InnerChoice:
    """One way to compile, as backend options. `lays_out`: True if in channels-last; None if it does not decide that."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    lays_out: bool | None = None


CHOICES: tuple[InnerChoice, ...] = (
    InnerChoice("layout_optimization_off", {"inner_options": {"layout_optimization": False}}, lays_out=False),
    InnerChoice(
        "layout_optimization_forced",
        {"inner_options": {"layout_optimization": True, "force_layout_optimization": True}},
        lays_out=True,
    ),
    InnerChoice(FROZEN_INDUCTOR[0], {"freeze": True}),
    InnerChoice(CPP, {"freeze": True, "inner_options": {"cpp_wrapper": True}}),
    InnerChoice("eager", {"inner": "eager"}),
    InnerChoice("eager_freezing", {"inner": "eager", "freeze": True}),
    InnerChoice(POOLED, {"pool_allocations": True}),
)
"""Alternatives to the inner compiler as it is, with layout optimization by its own rules."""
_BY_NAME = {choice.name: choice for choice in CHOICES}


def propose_inner_choices(
    facts: GraphFacts, inner: str, *, channels_last: bool, allocation: Allocation
) -> Iterator[Candidate | Refusal]:
    """Yield a candidate for each choice that could matter to a graph, and for the others the reason why they cannot.

    `inner` is the graph's compiler. `channels_last` is True if its own rules run the convolutions in channels-last.
    `allocation` is that of the process.
    """
    for choice in CHOICES:
        if choice.name == POOLED:
            reason = _explain_no_pooling(facts, allocation)
        else:
            reason = _explain_refusal(choice, facts, inner, channels_last)
        if reason is None:
            yield Candidate(NAME, EVERY_GRAPH, (), (choice.name,))
        else:
            yield Refusal(choice.name, reason)


def get_choice_options(candidate: Candidate) -> Mapping[str, Any]:
    """Return the backend options of a candidate of `propose_inner_choices`; raises `KeyError` for any other."""
    (name,) = candidate.choices
    return _BY_NAME[name].options


def pools_memory(candidates: Iterable[Candidate]) -> bool:
    """Return True if one of the candidates pools memory."""
    return any(candidate.rewrite == NAME and POOLED in candidate.choices for candidate in candidates)


def get_layout_choice(candidate: Candidate) -> bool | None:
    """Return True if the choice runs all convolutions in channels-last, False if as traced, None if it decides more."""
    return _BY_NAME[candidate.choices[0]].lays_out


def takes_rewrites(candidate: Candidate) -> bool:
    """Return True if measured times choose rewrites for the candidate: for another compiler, or for frozen weights."""
    return not get_choice_options(candidate).keys().isdisjoint(("inner", "freeze"))


def freezes_weights(candidates: Iterable[Candidate]) -> bool:
    """Return True if one of the candidates makes weights constants."""
    return any(candidate.rewrite == NAME and get_choice_options(candidate).get("freeze") for candidate in candidates)


def resolve_inner(candidates: Iterable[Candidate], inner: str) -> str:
    """Return the compiler of a program that `inner` would compile, if these candidates are applied."""
    options = (get_choice_options(candidate) for candidate in candidates if candidate.rewrite == NAME)
    return next((str(one["inner"]) for one in options if "inner" in one), inner)


def _explain_refusal(choice: InnerChoice, facts: GraphFacts, inner: str, channels_last: bool) -> str | None:
    operators = {op.operator for op in facts.ops}
    if inner != "inductor":
        return "the program is not compiled by Inductor"
    if choice.lays_out is not None and not operators & CONVOLUTIONS:
        return "Inductor lays out convolutions only, and the graph has none"
    if choice.lays_out is channels_last:
        return "Inductor's own rules make the same choice"
    if not operators & (CONVOLUTIONS | MATRIX_PRODUCTS):
        return "the graph has no library calls, only loops that Inductor fuses"
    if choice.name == CPP and any(facts.values[name].device.type != "cpu" for name in facts.inputs):
        return "not all of the graph's inputs are on the CPU"
    return _explain_no_freezing(facts) if choice.options.get("freeze") else None


def _explain_no_pooling(facts: GraphFacts, allocation: Allocation) -> str | None:
    if allocation is not Allocation.DEFAULT:
        return f"the allocation of host memory is {allocation} already"
    values = [value for value in facts.values.values() if value.device.type == "cpu" and value.producer is not None]
    if not any(value.bytes >= SMALLEST_RETURNED_BYTES for value in values):
        return "the graph makes no value on the CPU that is large enough for its memory to be given back"
    return None


def _explain_no_freezing(facts: GraphFacts) -> str | None:
    if facts.train:
        return "trained weights are not constants"
    if not any(facts.values[name].is_parameter for name in facts.inputs if name in facts.values):
        return "the graph reads no weights"
    return None
