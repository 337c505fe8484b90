"""Try larger batches, which use a device better until it is full. The time per sample is compared.

Another batch size changes the training: the learning rate may have to follow. The gates on the loss only see the few
steps of the trial.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.runs.tune.families.family import Family, make_configuration
from frx_graph.runs.tune.quality import MOST_MEMORY
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import Configuration, Tier

NAME = "batch size"
VARIABLE = "FRX_BATCH_SIZE"
_FACTORS = (1.25, 1.5, 2.0)


def propose(facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose larger batches; none if the events do not contain the batch size."""
    base = facts.seen.batch_size
    if base is None:
        return
    for size in sorted({round(base * factor) for factor in _FACTORS} - {base}):
        yield make_configuration(NAME, f"bs:{size}", Tier.VALIDATED, {VARIABLE: str(size)})


def refuse(candidate: Configuration, facts: WorkloadFacts) -> str | None:
    """Refuse if memory that grows with the batch, as most does, would leave no headroom."""
    base, ratio = facts.seen.batch_size, facts.seen.memory_ratio
    if base is None or ratio is None:
        return None
    expected = ratio * int(dict(candidate.variables)[VARIABLE]) / base
    if expected < MOST_MEMORY:
        return None
    return f"memory: {100 * ratio:.0f} % are in use at batch size {base}, so up to {100 * expected:.0f} % would be"


FAMILY = Family(NAME, frozenset({"underutilized_gpu", "launch_bound"}), propose, refuse)
