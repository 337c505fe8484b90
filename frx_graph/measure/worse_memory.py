"""What is worse about a candidate's use of memory than about its baseline's."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from frx_graph.measure.memory_use import MemoryRecord, MemoryUse

RESIDENT_FLOOR_BYTES = 2**20
"""Growth of resident memory per step below which nothing is said: C allocators and Python's take memory in pieces of
128 KiB to 1 MiB (`M_TOP_PAD` in glibc's mallopt(3), arenas in CPython's obmalloc) as they get fragmented."""


class MemoryFault(enum.StrEnum):
    """Kinds of what is worse."""

    PEAK = "higher peak"
    LEAK = "leak"
    RESIDENT_LEAK = "leak outside of torch"


@dataclass(frozen=True, slots=True)
class WorseMemory:
    """Bytes of both sides: at the peak, or by which memory grows in each step. `place` is `host` or `device`."""

    fault: MemoryFault
    place: str
    baseline_bytes: int
    candidate_bytes: int


def worse_memory(baseline: MemoryRecord, candidate: MemoryRecord, headroom: float) -> tuple[WorseMemory, ...]:
    """Where the candidate's peak exceeds the baseline's by more than the fraction `headroom` of it, or its memory grows
    with every step by more than the baseline's does.

    A leak in the first steps only is part of the peak. Raises `ValueError` if not as many steps were watched.
    """
    steps = [(len(side.host.steps), len(side.resident_bytes)) for side in (baseline, candidate)]
    if steps[0] != steps[1]:
        raise ValueError(f"{steps[0][0]} steps of the baseline, {steps[1][0]} of the candidate")
    found = list(_worse("host", baseline.host, candidate.host, headroom))
    if candidate.device is not None:
        # Without steps nothing was used: the candidate alone uses the GPU.
        found.extend(_worse("device", baseline.device or MemoryUse(0, ()), candidate.device, headroom))
    before, after = baseline.resident_growth_bytes, candidate.resident_growth_bytes
    leaks = any(one.fault is MemoryFault.LEAK for one in found)
    if after > before + RESIDENT_FLOOR_BYTES and not leaks:
        found.append(WorseMemory(MemoryFault.RESIDENT_LEAK, "host", before, after))
    return tuple(found)


def _worse(place: str, baseline: MemoryUse, candidate: MemoryUse, headroom: float) -> Iterator[WorseMemory]:
    if candidate.peak_bytes > baseline.peak_bytes * (1 + headroom):
        yield WorseMemory(MemoryFault.PEAK, place, baseline.peak_bytes, candidate.peak_bytes)
    before, after = baseline.growth_bytes if baseline.steps else 0, candidate.growth_bytes
    if after > max(before, 0):
        yield WorseMemory(MemoryFault.LEAK, place, before, after)
