"""Try settings of CUDA's caching allocator against fragmentation, which costs memory, and time when the cache is
emptied."""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.runs.tune.families.family import Family, make_configuration
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import Configuration, Tier

NAME = "allocator"
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
_SETTINGS = {"expandable": "expandable_segments:True", "split128": "max_split_size_mb:128"}


def propose(_facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose each setting."""
    for name, setting in _SETTINGS.items():
        yield make_configuration(NAME, f"alloc:{name}", Tier.SAFE, {VARIABLE: setting})


def refuse(_configuration: Configuration, facts: WorkloadFacts) -> str | None:
    """Refuse without CUDA, where the setting has no effect, and if the user has set it."""
    if not facts.gpus:
        return "there is no NVIDIA GPU here: the CUDA allocator is not used"
    if VARIABLE in facts.environment:
        return f"{VARIABLE} is set already, and a candidate would replace it"
    return None


FAMILY = Family(NAME, frozenset({"memory_pressure"}), propose, refuse)
