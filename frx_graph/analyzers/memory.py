"""Find what costs memory or time in a snapshot of CUDA's caching allocator.

Thresholds: memory is fragmented if a fifth of what is reserved is free in segments that are also in use, and the
largest such block is less than half of that. Segments that are wholly free do not count: the allocator reuses them, or
gives them back when memory runs out. The allocator churns if, in the second half of the history, it gives memory back
to CUDA and then takes some again. `cudaFree` waits for the device. The thresholds are our own, from how
`CUDACachingAllocator.cpp` works.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import dropwhile
from typing import Literal

from frx_graph.capture.call_site import CallSite
from frx_graph.evidence.memory_snapshot import AWAITING, FREE, USED, MemoryEvent, MemorySegment, MemorySnapshot
from frx_graph.support.plain_text import format_bytes

FREE_SHARE = 0.2
LARGEST_SHARE = 0.5
FEWEST_CALLS = 3
_MOST_SITES = 10
_TAKES = frozenset(["segment_alloc", "segment_map"])
_RETURNS = frozenset(["segment_free", "segment_unmap"])
_GROW = "Let segments grow, so that their free parts fit any request: PYTORCH_ALLOC_CONF=expandable_segments:True"
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
    """The memory of one device, in bytes. Counts of calls are of the recorded history; None: none was recorded.

    `split_free` is what is free in segments that also hold used blocks, `largest_split_free` its largest block.
    """

    device: int
    reserved: int
    allocated: int
    awaiting_free: int
    free: int
    largest_free: int
    split_free: int
    largest_split_free: int
    segments: int
    expandable: bool
    allocations: int | None
    calls_to_cuda: int | None
    late_calls_to_cuda: int | None
    """Those in the second half of the history."""
    late_retaken: int | None
    """Calls in the second half that take memory after another there has returned some."""


@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """Conclusions from a snapshot; findings are the gravest first, sites are sorted by the memory that they hold."""

    devices: tuple[DeviceMemory, ...]
    findings: tuple[MemoryFinding, ...]
    sites: tuple[MemorySite, ...]
    unreadable: int = 0
    """Entries of the snapshot that could not be read."""


def analyze_memory(snapshot: MemorySnapshot) -> MemoryAnalysis:
    """Analyse the state of the allocator, and its history."""
    segments: defaultdict[int, list[MemorySegment]] = defaultdict(list)
    for segment in snapshot.segments:
        segments[segment.device].append(segment)
    devices = tuple(
        _measure_device(number, segments.get(number, ()), snapshot.history.get(number, ()))
        for number in sorted({*segments, *snapshot.history})
    )
    findings = [
        finding for device in devices for finding in _find_problems(device, snapshot.history.get(device.device, ()))
    ]
    findings.sort(key=lambda one: (one.severity != "high", one.device))
    return MemoryAnalysis(devices, tuple(findings), _rank_sites(snapshot), snapshot.unreadable)


def _measure_device(number: int, segments: Sequence[MemorySegment], history: Sequence[MemoryEvent]) -> DeviceMemory:
    blocks = [block for segment in segments for block in segment.blocks]
    free = [block.size for block in blocks if block.state == FREE]
    split = [
        block.size
        for segment in segments
        if any(block.state != FREE for block in segment.blocks)
        for block in segment.blocks
        if block.state == FREE
    ]
    calls = [one.action for one in history if one.action in _TAKES | _RETURNS]
    late = [one.action for one in history[len(history) // 2 :] if one.action in _TAKES | _RETURNS]
    after_return = dropwhile(lambda action: action not in _RETURNS, late)
    return DeviceMemory(
        device=number,
        reserved=sum(segment.size for segment in segments),
        allocated=sum(block.size for block in blocks if block.state == USED),
        awaiting_free=sum(block.size for block in blocks if block.state in AWAITING),
        free=sum(free),
        largest_free=max(free, default=0),
        split_free=sum(split),
        largest_split_free=max(split, default=0),
        segments=len(segments),
        expandable=any(segment.expandable for segment in segments),
        allocations=sum(one.action == "alloc" for one in history) if history else None,
        calls_to_cuda=len(calls) if history else None,
        late_calls_to_cuda=len(late) if history else None,
        late_retaken=sum(action in _TAKES for action in after_return) if history else None,
    )


def _find_problems(device: DeviceMemory, history: Sequence[MemoryEvent]) -> Iterator[MemoryFinding]:
    failed = [one for one in history if one.action == "oom"]
    if failed:
        last = failed[-1]
        left = "" if last.free is None else f", with {format_bytes(last.free)} left"
        times = "once" if len(failed) == 1 else f"{len(failed):,} times"
        said = f"memory ran out {times}; the last request was for {format_bytes(last.size)}{left}"
        yield MemoryFinding(MemoryProblem.OUT_OF_MEMORY, "high", device.device, said, _FIXES["oom"])
    if (
        device.split_free > FREE_SHARE * device.reserved
        and device.largest_split_free < LARGEST_SHARE * device.split_free
    ):
        said = (
            f"{format_bytes(device.split_free)} of {format_bytes(device.reserved)} reserved are free beside blocks in "
            f"use, in pieces of at most {format_bytes(device.largest_split_free)}"
        )
        fix = _FIXES["expandable" if device.expandable else "fragmented"]
        yield MemoryFinding(MemoryProblem.FRAGMENTED, "medium", device.device, said, fix)
    if device.late_calls_to_cuda is not None and device.late_calls_to_cuda >= FEWEST_CALLS and device.late_retaken:
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
        if block.site is not None and block.state == USED:
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
