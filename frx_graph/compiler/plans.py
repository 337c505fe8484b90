"""Make plans for this process, and decide which rewrites a policy's highest risk allows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from frx_graph.compiler.code_fingerprint import compute_code_hash
from frx_graph.measure.machine.measurement_environment import get_measurement_environment
from frx_graph.passes.inner_choice import NAME as INNER_CHOICE
from frx_graph.passes.rewrites import BEFORE_FREEZING, REWRITES
from frx_graph.passes.rewrites.attention_from_views import NAME as ATTENTION
from frx_graph.passes.rewrites.frozen_products import NAME as FROZEN_PRODUCTS
from frx_graph.plan import PROPOSED, RECORDED, Plan
from frx_graph.records import Candidate, Risk

ALL_REWRITES = (
    ATTENTION,
    *dict.fromkeys(rewrite.name for rewrite in (*REWRITES, *BEFORE_FREEZING)),
    FROZEN_PRODUCTS,
)
"""All rewrites. The first is applied to Dynamo's graphs, the last to graphs that Inductor has frozen, and the others in
this order to the inner compiler's graphs. Those of `BEFORE_FREEZING` come before Inductor freezes a graph."""


def make_current_plan(policy: str, only: Collection[str] | None = None) -> Plan:
    """Return the plan that `policy`, not a recorded one, means in this process, limited to the rewrites `only`."""
    return Plan(
        policy=policy,
        rewrites=tuple(name for name in ALL_REWRITES if only is None or name in only),
        code=compute_code_hash(),
        machine=tuple(get_measurement_environment(device).fingerprint for device in ("cpu", "cuda")),
    )


def make_proposing_plan(rewrites: Collection[str], choices: tuple[Candidate, ...]) -> Plan:
    """Return the plan that applies those of `rewrites` that measured times favour, with these inner `choices`."""
    plan = make_current_plan(PROPOSED, rewrites)
    return replace(plan, rewrites=(INNER_CHOICE, *plan.rewrites), candidates=choices) if choices else plan


def make_recorded_plan(candidates: tuple[Candidate, ...]) -> Plan:
    """Return the plan, free of measurements, of these candidates; their `graph_id` is the graph's signature."""
    made = {candidate.rewrite for candidate in candidates}
    rewrites = tuple(name for name in (INNER_CHOICE, *ALL_REWRITES) if name in made)
    return Plan(RECORDED, rewrites, compute_code_hash(), machine=(), candidates=candidates)


_LOW_RISK = frozenset(
    {
        "attention_from_views",
        "backward_layout",
        "cancel_permutes",
        "drop_redundant_copies",
        "fold_padding",
        "hoist_copy",
        "propagate_layout",
        "eager",
        "layout_optimization_forced",
        "layout_optimization_off",
    }
)
"""They keep the operators of a graph, or use fused attention, and change only the order of operands or the way torch
compiles. The others freeze or pack weights, reuse memory, or choose an implementation: MEDIUM."""


def filter_by_risk(names: Iterable[str], highest: Risk, *, isolated: bool = True) -> tuple[str, ...]:
    """Return the rewrites and inner choices among `names` whose risk is at most `highest`.

    If a trial is not `isolated` from the program, each counts as one tier higher: MEDIUM then allows low risk only, and
    LOW nothing.
    """
    tiers = list(Risk)
    most = tiers.index(highest) - (not isolated)
    return tuple(name for name in names if tiers.index(Risk.LOW if name in _LOW_RISK else Risk.MEDIUM) <= most)


def is_permitted(highest: Risk, candidates: Iterable[Candidate]) -> bool:
    """Return True if a plan with these candidates has at most this risk."""
    names = [one.choices[0] if one.rewrite == INNER_CHOICE else one.rewrite for one in candidates]
    return len(filter_by_risk(names, highest)) == len(names)
