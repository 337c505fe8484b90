"""How much of a risk a rewrite is, and which may be tried, and applied, under a policy."""

from __future__ import annotations

from collections.abc import Iterable

from frx_graph.passes.inner_choice import NAME as INNER_CHOICE
from frx_graph.records import Candidate, Risk

_LOW_RISK = frozenset(
    {
        "attention_from_views",
        "backward_layout",
        "cancel_permutes",
        "drop_redundant_copies",
        "hoist_copy",
        "propagate_layout",
        "eager",
        "layout_optimization_forced",
        "layout_optimization_off",
    }
)
"""After which a graph calls the operators that it called, or attention, as every eager program may: with operands in
another order, or compiled as torch can compile it. The others make constants of weights, pack them, write into memory
that they reuse, or pick an implementation: MEDIUM."""


def allowed(names: Iterable[str], highest: Risk, *, isolated: bool = True) -> tuple[str, ...]:
    """Those of rewrites, or of choices of the inner compiler, whose risk is at most `highest`. Where nothing isolates a
    program from what is tried in it, each counts as one tier higher: with MEDIUM those of low risk are left, with LOW
    none."""
    tiers = list(Risk)
    most = tiers.index(highest) - (not isolated)
    return tuple(name for name in names if tiers.index(_risk(name)) <= most)


def permits(highest: Risk, candidates: Iterable[Candidate]) -> bool:
    """Whether a plan that makes these candidates is of no higher risk."""
    names = [one.choices[0] if one.rewrite == INNER_CHOICE else one.rewrite for one in candidates]
    return len(allowed(names, highest)) == len(names)


def _risk(name: str) -> Risk:
    return Risk.LOW if name in _LOW_RISK else Risk.MEDIUM
