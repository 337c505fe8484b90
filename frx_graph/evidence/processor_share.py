"""Whether a measurement had the processors to itself: what a busy machine measured must not be remembered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch

UNDISTURBED_SHARE = 0.6
"""PLACEHOLDER"""


@contextlib.contextmanager
def processor_share() -> Iterator[Callable[[], float]]:
    """Which share of its processors this process had inside, 0..1: processor time over wall time and torch threads."""
    wall, processor = time.perf_counter(), time.process_time()
    yield lambda: (time.process_time() - processor) / ((time.perf_counter() - wall) * torch.get_num_threads())
