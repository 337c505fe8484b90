"""Measure the memory that a program's steps take and keep.

On the CPU every allocation of torch is replayed from the profiler's record, generated code included. Memory that torch
does not allocate (oneDNN's scratch pads, other libraries) shows in the process's resident memory only. On a GPU the
caching allocator's counters are read: bytes in use, not bytes reserved.
"""

from __future__ import annotations

import contextlib
import enum
import gc
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import nn

from frx_graph.measure.operators.operator_events import get_kineto_results, run_profiler
from frx_graph.support.garbage_collection import find_instances
from frx_graph.support.torch_internals import EventType, RecordFunctionFast

_STEP = "frx::memory_step"


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes of one step, above those that were live at its start. `kept_bytes` is still live after its end and a
    garbage collection; it is negative if the step freed more than it allocated."""

    peak_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of some steps of a program, in order, on one kind of device. `live_bytes` was in use by tensors before."""

    live_bytes: int
    steps: tuple[StepMemory, ...]

    @property
    def peak_bytes(self) -> int:
        """The most memory that was live at any time, including memory from before and from earlier steps."""
        live = highest = self.live_bytes
        for step in self.steps:
            highest = max(highest, live + step.peak_bytes)
            live += step.kept_bytes
        return max(highest, live)

    @property
    def growth_bytes(self) -> int:
        """Bytes by which live memory grows with a step: the median of the later half, since the first steps fill caches
        and make gradients and optimizer states. Negative if it shrinks."""
        late = sorted(step.kept_bytes for step in self.steps[len(self.steps) // 2 :])
        # Of two in the middle, the one nearer to zero.
        return min(late[(len(late) - 1) // 2 : len(late) // 2 + 1], key=abs)


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """The result of `observe_memory`. `device` is None without a GPU in use; `resident_bytes` is the process's resident
    memory after each of twice as many further steps, which ran without a profiler."""

    host: MemoryUse
    device: MemoryUse | None
    resident_bytes: tuple[int, ...]

    @property
    def resident_growth_bytes(self) -> int:
        """The smallest growth of resident memory among the later steps; 0 if a step did not make it grow. The process's
        allocators grow at times by themselves, but not with every step."""
        late = self.resident_bytes[(len(self.resident_bytes) - 1) // 2 :]
        return max(0, min((after - before for before, after in itertools.pairwise(late)), default=0))


def observe_memory(step: Callable[[], object], steps: int = 5) -> MemoryRecord:
    """Run `step` `steps` times with its allocations recorded, then twice as often to watch resident memory: an
    allocator has been seen to grow by a megabyte in each of two steps by itself.

    If no step has run before, memory kept by compiling, gradients and optimizer states count for the first step. Frees
    of earlier memory are not seen: the first step that replaces it keeps its size. Allocations on threads that torch
    did not start are not recorded.

    Raises the errors of `step`, `ValueError` for less than three steps, which cannot distinguish a leak from a cache,
    and `EvidenceError` if a torch profiler is running.
    """
    if steps < 3:
        raise ValueError(f"{steps} steps do not show whether memory grows")
    host_live, device_live = _count_live_host_bytes(), _get_device_bytes()
    with _limit_gc():
        host_steps, device_steps = _profile_steps(step, steps)
        resident = tuple(_measure_resident(step, 2 * steps))
    return MemoryRecord(
        host=MemoryUse(host_live, host_steps),
        # A program may begin to use the GPU in its first step.
        device=MemoryUse(device_live, device_steps) if _list_devices_in_use() else None,
        resident_bytes=resident,
    )


def _profile_steps(step: Callable[[], object], steps: int) -> tuple[tuple[StepMemory, ...], tuple[StepMemory, ...]]:
    """The steps' memory on the host and on GPUs."""
    on_device: list[StepMemory] = []
    with run_profiler("memory is watched", profile_memory=True) as profiler:
        for _ in range(steps):
            with RecordFunctionFast(_STEP):
                on_device.append(_run_on_device(step))
    return tuple(_replay_events(get_kineto_results(profiler).experimental_event_tree())), tuple(on_device)


@contextlib.contextmanager
def _limit_gc() -> Iterator[None]:
    """Limit garbage collection to new objects, as a full collection of torch's objects takes a second. Does nothing if
    the program has frozen objects itself, since the two could not be separated."""
    gc.collect()
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _measure_resident(step: Callable[[], object], steps: int) -> Iterator[int]:
    process = psutil.Process()
    for _ in range(steps):
        step()
        gc.collect()
        yield process.memory_info().rss


def _run_on_device(step: Callable[[], object]) -> StepMemory:
    """Run `step` and collect garbage; zeros where no GPU is in use."""
    before = _get_device_bytes()
    for device in _list_devices_in_use():
        torch.cuda.reset_peak_memory_stats(device)
    step()
    gc.collect()
    devices = _list_devices_in_use()
    for device in devices:
        torch.cuda.synchronize(device)
    peak = sum(torch.cuda.max_memory_allocated(device) for device in devices)
    return StepMemory(max(0, peak - before), _get_device_bytes() - before)


def _get_device_bytes() -> int:
    """Bytes that tensors hold on all GPUs."""
    return sum(torch.cuda.memory_allocated(device) for device in _list_devices_in_use())


def _list_devices_in_use() -> range:
    return range(torch.cuda.device_count() if torch.cuda.is_available() and torch.cuda.is_initialized() else 0)


def _count_live_host_bytes() -> int:
    """Return the bytes of the storages of tensors known to Python, each counted once, and of weights that oneDNN has
    packed. Tensors that exist only in C++, such as those saved for a backward, are not counted."""
    storages: dict[int, int] = {}
    packed = 0
    # Subclasses may have no storage of their own, or none at all (FakeTensor).
    for tensor in find_instances(torch.Tensor, nn.Parameter, nn.Buffer):
        if tensor.is_mkldnn:
            packed += torch.ops.mkldnn._nbytes(tensor)
        elif tensor.device.type == "cpu" and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values()) + packed


def _replay_events(roots: Sequence[Any]) -> Iterator[StepMemory]:
    """The steps' memory, from the profiler's tree. Frees of what was allocated before it ran are not counted."""
    begins: list[int] = []
    at_place: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    pending = list(roots)
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.tag == EventType.Allocation:
            if event.extra_fields.device.type == "cpu":
                at_place[event.extra_fields.ptr].append((event.start_time_ns, event.extra_fields.alloc_size))
        elif event.tag == EventType.TorchOp and event.name == _STEP:
            begins.append(event.start_time_ns)
    begins.sort()
    # Events at one moment begin with frees, so that no peak is overstated.
    changes = sorted(change for place in at_place.values() for change in _drop_older_frees(place))
    for begin, end in zip(begins, [*begins[1:], math.inf], strict=True):
        live = [0, *itertools.accumulate(size for moment, size in changes if begin <= moment < end)]
        yield StepMemory(max(live), live[-1])


def _drop_older_frees(changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the allocations and frees of these steps at one address: times and bytes. Torch keeps the size that an
    earlier run of the profiler has seen at an address (seen on 2.13), so the first free may belong to older memory."""
    allocated = [change for change in changes if change[1] >= 0]
    freed = [change for change in changes if change[1] < 0]
    if freed and (len(freed) > len(allocated) or min(freed)[0] < min(allocated)[0]):
        freed.remove(min(freed))
    return [*allocated, *freed]


RESIDENT_FLOOR_BYTES = 2**20
"""Growth of resident memory per step that is not reported. As they get fragmented, C's and Python's allocators take
pieces of 128 KiB to 1 MiB (`M_TOP_PAD` in glibc's mallopt(3), arenas in CPython's obmalloc)."""
PEAK_FLOOR_BYTES = 2 * 2**20
"""Increase of a peak that is not reported. The peak resident memory of six processes that ran the same small network
differed by 1.3 MiB."""


class MemoryFault(enum.StrEnum):
    """Kinds of worse memory use."""

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


def compare_memory(
    baseline: MemoryRecord, candidate: MemoryRecord, headroom: float, copies: float = 0.0
) -> tuple[WorseMemory, ...]:
    """Compare memory use: report a peak above the baseline's by more than the fraction `headroom` and 2 MiB, and growth
    per step above the baseline's. `copies` allows for as many copies of what was live before the first step:
    weights and inputs.

    A leak in the first steps only is part of the peak. Raises `ValueError` if the numbers of steps differ.
    """
    steps = [(len(side.host.steps), len(side.resident_bytes)) for side in (baseline, candidate)]
    if steps[0] != steps[1]:
        raise ValueError(f"{steps[0][0]} steps of the baseline, {steps[1][0]} of the candidate")
    found = list(_compare_use("host", baseline.host, candidate.host, headroom, copies))
    if candidate.device is not None:
        # Without steps nothing was used: the candidate alone uses the GPU.
        found.extend(_compare_use("device", baseline.device or MemoryUse(0, ()), candidate.device, headroom, copies))
    before, after = baseline.resident_growth_bytes, candidate.resident_growth_bytes
    leaks = any(one.fault is MemoryFault.LEAK for one in found)
    if after > before + RESIDENT_FLOOR_BYTES and not leaks:
        found.append(WorseMemory(MemoryFault.RESIDENT_LEAK, "host", before, after))
    return tuple(found)


def _compare_use(
    place: str, baseline: MemoryUse, candidate: MemoryUse, headroom: float, copies: float
) -> Iterator[WorseMemory]:
    allowed = max(baseline.peak_bytes * headroom, PEAK_FLOOR_BYTES) + copies * baseline.live_bytes
    if candidate.peak_bytes > baseline.peak_bytes + allowed:
        yield WorseMemory(MemoryFault.PEAK, place, baseline.peak_bytes, candidate.peak_bytes)
    before, after = baseline.growth_bytes if baseline.steps else 0, candidate.growth_bytes
    if after > max(before, 0):
        yield WorseMemory(MemoryFault.LEAK, place, before, after)
