"""The plan that graphs are rewritten by in this process."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from frx_graph.compiler.code_fingerprint import code_hash
from frx_graph.measure.machine.measurement_environment import measurement_environment
from frx_graph.passes.inner_choice import NAME as INNER_CHOICE
from frx_graph.passes.rewrites import REWRITES
from frx_graph.passes.rewrites.attention_from_views import NAME as ATTENTION
from frx_graph.plan import RECORDED, Plan
from frx_graph.records import Candidate

ALL_REWRITES = (ATTENTION, *(rewrite.name for rewrite in REWRITES))
"""Of graphs, in the order in which they are made: attention in Dynamo's, the others in the inner compiler's."""


def current_plan(policy: str, only: Collection[str] | None = None) -> Plan:
    """What `policy` ("all", "solved") stands for in this process, with `only` these rewrites; what is made of a graph
    depends on nothing else."""
    return Plan(
        policy=policy,
        rewrites=tuple(name for name in ALL_REWRITES if only is None or name in only),
        code=code_hash(),
        machine=tuple(measurement_environment(device).fingerprint for device in ("cpu", "cuda")),
    )


def proposing_plan(rewrites: Collection[str], choices: tuple[Candidate, ...]) -> Plan:
    """What measured times speak for among these rewrites, where the program is compiled by the inner compiler that
    `choices`, if there are any, say."""
    plan = current_plan("solved", rewrites)
    return replace(plan, rewrites=(INNER_CHOICE, *plan.rewrites), candidates=choices) if choices else plan


def recorded_plan(candidates: tuple[Candidate, ...]) -> Plan:
    """The plan that makes these candidates, each with the signature of its graph for its `graph_id`, and nothing
    else. No measurement has a say in it."""
    made = {candidate.rewrite for candidate in candidates}
    rewrites = tuple(name for name in (INNER_CHOICE, *ALL_REWRITES) if name in made)
    return Plan(RECORDED, rewrites, code_hash(), machine=(), candidates=candidates)
