"""Try CUDA graphs, which record all launches of a step once and send them as one."""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.runs.tune.families.compilation import explain_changing_shapes
from frx_graph.runs.tune.families.family import Family, make_configuration
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import Configuration, Tier

NAME = "cuda graphs"
VARIABLE = "FRX_CUDA_GRAPHS"


def propose(_facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose recorded launches for static shapes."""
    yield make_configuration(NAME, "cudagraphs:static", Tier.VALIDATED, {VARIABLE: "try_if_static_shapes"})


def refuse(_configuration: Configuration, facts: WorkloadFacts) -> str | None:
    """Refuse without CUDA, and if shapes change."""
    if not facts.gpus:
        return "CUDA is unavailable"
    return explain_changing_shapes(facts)


FAMILY = Family(NAME, frozenset({"launch_bound", "underutilized_gpu"}), propose, refuse)
