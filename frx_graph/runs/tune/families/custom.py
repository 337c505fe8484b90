"""Try the user's candidates: any environment variables that the program, or a library in it, reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from frx_graph.runs.tune.families.family import Family, make_configuration
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import Configuration, Tier

NAME = "custom"
_LONGEST_NAME = 80
"""Length of a folder's name; file systems take 255 bytes."""


def make_custom_family(candidates: Sequence[tuple[tuple[str, str], ...]]) -> Family:
    """Return a family with one candidate for each set of variables. It is tried for every bottleneck, and counts as
    safe, because the user has chosen it."""

    def propose(_facts: WorkloadFacts) -> Iterator[Configuration]:
        taken: set[str] = set()
        for variables in dict.fromkeys(candidates):
            label = ",".join(f"{name}={value}" for name, value in variables)
            made = make_configuration(NAME, f"custom:{label}", Tier.SAFE, dict(variables))
            # A folder's name holds less than a value may: `X=a/b` and `X=a:b` are two candidates.
            short = made.id[:_LONGEST_NAME]
            names = (short if number == 1 else f"{short}.{number}" for number in count(1))
            free = next(name for name in names if name.lower() not in taken)
            taken.add(free.lower())
            yield replace(made, id=free)

    return Family(NAME, frozenset(), propose)
