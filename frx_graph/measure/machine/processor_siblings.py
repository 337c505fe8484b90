"""Which processors share a core, so that what runs on one slows down the other."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")


@cache
def with_siblings(processors: frozenset[int], cpus: Path = _CPUS) -> frozenset[int]:
    """These processors, and those that share a core with one of them (`topology/thread_siblings_list`)."""
    return processors.union(*(siblings(number, cpus) for number in processors))


def siblings(number: int, cpus: Path = _CPUS) -> frozenset[int]:
    """The processors of its core, with itself, and itself alone where the system does not tell."""
    found = set()
    try:
        for part in (cpus / f"cpu{number}" / "topology" / "thread_siblings_list").read_text().split(","):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        return frozenset({number})
    return frozenset(found)
