"""Which steps figures are of: all of them, or those in a steady state, without warm-up."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.analyzers.run.steps import RunStep

SKIP_FIRST = 5
"""Steps of a process in which it compiles, tunes, starts workers and fills queues; as many as a trial warms up with."""
SKIP_AT_MOST = 5
"""One of as many steps may be skipped: of a short run most is used."""
LAST = 1000
"""Of a long run, how it is now: its last steps of each process."""


class Scope(enum.StrEnum):
    """What `--scope` names."""

    RUN = "run"
    STEADY_STATE = "steady_state"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Selector:
    """How the steady state is chosen, of each process: `skip_first_n` steps are left out, or every fifth of them where
    that is fewer, and of the others the `last_k` are used."""

    skip_first_n: int = SKIP_FIRST
    last_k: int = LAST

    def select(self, steps: Sequence[RunStep]) -> tuple[RunStep, ...]:
        """Of steps in order of time, those that are in a steady state."""
        found: list[RunStep] = []
        for here in processes(steps).values():
            skipped = min(self.skip_first_n, len(here) // SKIP_AT_MOST)
            found.extend(here[skipped:][-self.last_k :])
        return tuple(found)


def processes(steps: Sequence[RunStep]) -> dict[int | None, list[RunStep]]:
    """The steps of each process."""
    found: dict[int | None, list[RunStep]] = defaultdict(list)
    for step in steps:
        found[step.process].append(step)
    return dict(found)
