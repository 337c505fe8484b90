"""Candidates of the user's own: any environment variables that the program, or a library in it, reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frx_graph.runs.tune.families.family import Family, configuration
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import Configuration, Tier

NAME = "custom"


def custom_family(candidates: Sequence[tuple[tuple[str, str], ...]]) -> Family:
    """One candidate for each set of variables; whoever names them answers for them, so they count as safe. They are
    tried whatever the bottleneck is."""

    def propose(_facts: WorkloadFacts) -> Iterator[Configuration]:
        for variables in candidates:
            label = ",".join(f"{name}={value}" for name, value in variables)
            yield configuration(NAME, f"custom:{label}", Tier.SAFE, dict(variables))

    return Family(NAME, frozenset(), propose)
