"""One of several equal parts of the processors that a node's programs may use."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class ProcessorPart:
    """The part `number`, from 0, of `parts`. Each has as many processors as the others, so that they are alike; no two
    share one, unless there are fewer processors than parts."""

    number: int
    parts: int

    def of(self, usable: Collection[int], cpus: Path = _CPUS) -> frozenset[int]:
        """Its processors, neighbours; those of one core stay together, since they slow each other down."""
        ordered = sorted(usable, key=lambda processor: (_first_of_core(processor, cpus), processor))
        size = max(1, len(ordered) // self.parts)
        begin = self.number * size % len(ordered)
        return frozenset(ordered[begin : begin + size])

    def take(self) -> None:
        """From now on the process, and what it starts, uses no others, where the system can see to that."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.of(os.sched_getaffinity(0)))


def _first_of_core(processor: int, cpus: Path) -> int:
    """The lowest processor of the same core, as the system tells in `0,32` or `0-1`; itself where it does not."""
    with contextlib.suppress(OSError, ValueError):
        told = (cpus / f"cpu{processor}" / "topology" / "thread_siblings_list").read_text()
        return int(re.split("[,-]", told)[0])
    return processor
