"""Estimate how long a program takes in the tensors that a loader's worker processes hand over.

Each tensor costs about the same, however small: it has its own shared memory, and the program asks the worker for the
file descriptor (`torch.multiprocessing.reductions.rebuild_storage_fd`). One thread does that for all workers.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from frx_graph.analyzers.run.batch_layouts import Layouts
from frx_graph.analyzers.run.steps import RunStep
from frx_graph.evidence.run.events import LoaderWait, RunEvent

TENSOR_NS = 150_000
"""Time for each tensor, about half of what was measured, since other machines are faster. Source: torch 2.15 on two
cores of a Xeon takes 235 to 400 us for each of 10, 112 or 400 tensors of 16 bytes a batch, from 1, 2 or 4 workers."""


def estimate_hand_over(known: Layouts, steps: Sequence[RunStep], events: Iterable[RunEvent]) -> float | None:
    """Return the mean time a step, in nanoseconds, for taking in a batch from worker processes. None if no batch is
    known, or one loader of the process has no workers: which loader made a batch is not recorded."""
    waits = [event for event in events if isinstance(event, LoaderWait)]
    served = {wait.process for wait in waits if wait.workers} - {wait.process for wait in waits if wait.workers == 0}
    batches = [known.find_batch(step) for step in steps if step.process in served]
    found = [TENSOR_NS * max(batch.tensor_count or 0, len(batch.tensors)) for batch in batches if batch is not None]
    return statistics.fmean(found) if found else None
