"""Find what costs memory or time in a snapshot of CUDA's caching allocator.

Thresholds: memory is fragmented if a fifth of what is reserved is free, and the largest free block is less than half of
that. The allocator churns if it asks CUDA for memory, or gives it back, in the second half of the history: each such
call waits for the device. Both are our own, from how `CUDACachingAllocator.cpp` works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from frx_graph.capture.call_site import CallSite
from frx_graph.evidence.memory_snapshot import MemoryEvent, MemorySegment, MemorySnapshot
from frx_graph.support.plain_text import format_bytes

FREE_SHARE = 0.2
LARGEST_SHARE = 0.5
FEWEST_CALLS = 3
_MOST_SITES = 10
_TO_CUDA = frozenset(["segment_alloc", "segment_free", "segment_map", "segment_unmap"])
_USED = "active_allocated"
_FREE = "inactive"
_GROW = "Let segments grow, so that their free parts fit any request: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_FIXES = {
    "fragmented": _GROW,
    "expandable": "Free what lives long first, and allocate it before what lives shortly: the pieces lie between them",
    "churn": "Remove torch.cuda.empty_cache() from the loop; keep shapes the same, or begin with the largest",
    "oom": "Hold less: see the lines that hold most; recompute activations, or use a smaller batch",
    "awaiting": "Tensors that another stream uses are freed late: record_stream less, or wait for the stream first",
}


class MemoryProblem(StrEnum):
    """Kind of a problem."""

    OUT_OF_MEMORY = "out_of_memory"
    FRAGMENTED = "fragmented_memory"
    CHURN = "allocator_churn"
    AWAITING = "memory_awaiting_other_streams"


@dataclass(frozen=True, slots=True)
class MemoryFinding:
    """A problem on one device."""

    kind: MemoryProblem
    severity: Literal["high", "medium"]
    device: int
    evidence: str
    fix: str


@dataclass(frozen=True, slots=True)
class MemorySite:
    """A line of the program, the bytes that it holds now, and what it allocated in the history."""

    site: CallSite
    live_bytes: int
    live_blocks: int
    allocated_bytes: int
    allocations: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of one device, in bytes. Counts of calls are of the recorded history; None: none was recorded."""

    device: int
    reserved: int
    allocated: int
    awaiting_free: int
    free: int
    largest_free: int
    segments: int
    expandable: bool
    allocations: int | None
    calls_to_cuda: int | None
    late_calls_to_cuda: int | None
    """Those in the second half of the history."""


@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """Conclusions from a snapshot; findings are the gravest first, sites are sorted by the memory that they hold."""

    devices: tuple[DeviceMemory, ...]
    findings: tuple[MemoryFinding, ...]
    sites: tuple[MemorySite, ...]


def analyze_memory(snapshot: MemorySnapshot) -> MemoryAnalysis:
    """Analyse the state of the allocator, and its history."""
    numbers = sorted({one.device for one in snapshot.segments} | set(snapshot.history))
    devices = tuple(
        _measure_device(
            number, [one for one in snapshot.segments if one.device == number], snapshot.history.get(number, ())
        )
        for number in numbers
    )
    findings = [
        finding for device in devices for finding in _find_problems(device, snapshot.history.get(device.device, ()))
    ]
    findings.sort(key=lambda one: (one.severity != "high", one.device))
    return MemoryAnalysis(devices, tuple(findings), _rank_sites(snapshot))


def _measure_device(number: int, segments: Sequence[MemorySegment], history: Sequence[MemoryEvent]) -> DeviceMemory:
    blocks = [block for segment in segments for block in segment.blocks]
    free = [block.size for block in blocks if block.state == _FREE]
    allocated = sum(block.size for block in blocks if block.state == _USED)
    late = history[len(history) // 2 :]
    return DeviceMemory(
        device=number,
        reserved=sum(segment.size for segment in segments),
        allocated=allocated,
        awaiting_free=sum(block.size for block in blocks) - allocated - sum(free),
        free=sum(free),
        largest_free=max(free, default=0),
        segments=len(segments),
        expandable=any(segment.expandable for segment in segments),
        allocations=sum(one.action == "alloc" for one in history) if history else None,
        calls_to_cuda=sum(one.action in _TO_CUDA for one in history) if history else None,
        late_calls_to_cuda=sum(one.action in _TO_CUDA for one in late) if history else None,
    )


def _find_problems(device: DeviceMemory, history: Sequence[MemoryEvent]) -> Iterator[MemoryFinding]:
    failed = [one for one in history if one.action == "oom"]
    if failed:
        last = failed[-1]
        left = "" if last.free is None else f", with {format_bytes(last.free)} left"
        times = "once" if len(failed) == 1 else f"{len(failed):,} times"
        said = f"memory ran out {times}; the last request was for {format_bytes(last.size)}{left}"
        yield MemoryFinding(MemoryProblem.OUT_OF_MEMORY, "high", device.device, said, _FIXES["oom"])
    if device.free > FREE_SHARE * device.reserved and device.largest_free < LARGEST_SHARE * device.free:
        said = (
            f"{format_bytes(device.free)} of {format_bytes(device.reserved)} reserved are free, in pieces of at most "
            f"{format_bytes(device.largest_free)}"
        )
        fix = _FIXES["expandable" if device.expandable else "fragmented"]
        yield MemoryFinding(MemoryProblem.FRAGMENTED, "medium", device.device, said, fix)
    if device.late_calls_to_cuda is not None and device.late_calls_to_cuda >= FEWEST_CALLS:
        said = (
            f"{device.late_calls_to_cuda:,} of the {device.calls_to_cuda:,} calls that take memory from CUDA or return "
            f"it are in the second half of the history of {device.allocations:,} allocations"
        )
        yield MemoryFinding(MemoryProblem.CHURN, "medium", device.device, said, _FIXES["churn"])
    if device.awaiting_free > FREE_SHARE * device.reserved:
        said = f"{format_bytes(device.awaiting_free)} of {format_bytes(device.reserved)} reserved await other streams"
        yield MemoryFinding(MemoryProblem.AWAITING, "medium", device.device, said, _FIXES["awaiting"])


def _rank_sites(snapshot: MemorySnapshot) -> tuple[MemorySite, ...]:
    live, blocks, allocated, calls = (Counter[CallSite]() for _ in range(4))
    for block in (block for segment in snapshot.segments for block in segment.blocks):
        if block.site is not None and block.state == _USED:
            live[block.site] += block.size
            blocks[block.site] += 1
    for event in (event for events in snapshot.history.values() for event in events):
        if event.site is not None and event.action == "alloc":
            allocated[event.site] += event.size
            calls[event.site] += 1
    ranked = sorted({*live, *allocated}, key=lambda site: (-live[site], -allocated[site], str(site)))
    return tuple(
        MemorySite(site, live[site], blocks[site], allocated[site], calls[site]) for site in ranked[:_MOST_SITES]
    )
