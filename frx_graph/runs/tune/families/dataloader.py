"""Try settings of data loading: the number of workers, batches prefetched by each, and pinned memory.

Workers help if a sample waits (for a disk, a network), or takes longer to process than a step. More workers than twice
the processors only help against waiting, and cost memory. Pinned memory makes copies to a GPU faster, but adds copies
on the host; without a GPU it has no use.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.runs.tune.families.family import Family, make_configuration
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import Configuration, Tier

NAME = "dataloader"
_MOST_WORKERS = 16
_PREFETCH, _MORE_PREFETCH = 2, 4
"""torch's default is 2."""


def propose(facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose the grid of workers and pinned memory, then more prefetched batches."""
    pins = (True, False) if facts.gpus else (False,)
    counts = _list_worker_counts(facts.processors)
    for workers in counts:
        for pin in pins:
            if workers != facts.seen.workers or facts.gpus:
                yield _make_candidate(workers, pin, _PREFETCH)
    for workers in [count for count in counts if count][-2:]:
        yield _make_candidate(workers, pins[0], _MORE_PREFETCH)


def _list_worker_counts(processors: int) -> tuple[int, ...]:
    wanted = {0, max(1, processors // 2), processors, 2 * processors}
    return tuple(sorted({min(count, _MOST_WORKERS) for count in wanted}))


def _make_candidate(workers: int, pin: bool, prefetch: int) -> Configuration:
    more = f",pf={prefetch}" if prefetch != _PREFETCH else ""
    variables = {"FRX_NUM_WORKERS": str(workers), "FRX_PIN_MEMORY": str(pin).lower()}
    if workers:
        variables |= {"FRX_PERSISTENT_WORKERS": "true", "FRX_PREFETCH_FACTOR": str(prefetch)}
    return make_configuration(NAME, f"dl:nw={workers},pin={'T' if pin else 'F'}{more}", Tier.SAFE, variables)


FAMILY = Family(NAME, frozenset({"input_bound", "copy_bound"}), propose)
