"""Measure whether a virtual machine's processors are near each other: on cores that share a cache.

A hypervisor may move them at any time, and the system reports nothing: it shows one shared cache all the time. On a
virtual EPYC with two processors, a cache line took 28 ns from one to the other, or 160 ns, for 5 to 110 s at a time. In
the latter case `examples/convnet.py` took 1.3 times as long, since threads read what others have written, and the
bandwidth of memory was 1.5 to 2 times as high. So ratios of two programs' times changed, from 1.02 to 1.14.

A parallel loop shows it: all threads have to meet at its end.
"""

from __future__ import annotations

import re
import time
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from frx_graph.support.cache_directory import get_cache_directory, write_cache_entry

FAR = 1.3
"""Times of the least distance from which processors are far from each other. On the virtual EPYC the distance was 1.1
to 1.3, or 1.5 to 2.6: less between blocks of a program than by itself."""
MOST_THREADS = 8
"""More threads are never all on cores that share a cache, on most processors."""
_SHARE = 32768
"""Elements for each thread: the fewest that torch lets a thread work on (`at::internal::GRAIN_SIZE`)."""
_RUNS = 20
_REPEATS, _PAUSE_SECONDS = 2, 0.003
_KEPT_SECONDS = 86400.0
"""Age at which a least distance counts no more: the machine may have moved for good."""
_CPU_INFO = Path("/proc/cpuinfo")


def measure_distance() -> float | None:
    """Return the time of the shortest loop of all of torch's threads, divided by the time of one thread's share alone.

    None for one thread or more than `MOST_THREADS`, and where no hypervisor can move processors. Takes 0.3 ms if they
    are near, and 8 ms if not.
    """
    threads = torch.get_num_threads()
    if not 1 < threads <= MOST_THREADS or not _is_virtual_machine():
        return None
    whole = _make_elements(threads)
    least = _compare_loops(whole)
    for _ in range(_REPEATS):
        if least < FAR:
            break
        # Another program may have had a processor for a moment.
        time.sleep(_PAUSE_SECONDS)
        least = min(least, _compare_loops(whole))
    return least


def _compare_loops(whole: Tensor) -> float:
    alone = whole[:_SHARE]
    for_all, for_one = [], []
    for _ in range(_RUNS):
        for_one.append(_time_loop(alone))
        for_all.append(_time_loop(whole))
    return min(for_all) / min(for_one)


def _time_loop(elements: Tensor) -> int:
    started = time.perf_counter_ns()
    elements.bitwise_xor_(1)
    return time.perf_counter_ns() - started


@cache
def _make_elements(threads: int) -> Tensor:
    # Not an inference tensor, which could not be changed outside of that mode.
    with torch.inference_mode(False):
        return torch.zeros(threads * _SHARE, dtype=torch.uint8, device="cpu")


@cache
def _is_virtual_machine(info: Path = _CPU_INFO) -> bool:
    """Return True if the processors say that a hypervisor is there (the flag `hypervisor`; Linux on x86)."""
    try:
        return re.search(r"^flags\s*:.*\bhypervisor\b", info.read_text(), re.MULTILINE) is not None
    except OSError:
        return False


class _StoredDistance(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal["frx_processor_distance_v1"] = "frx_processor_distance_v1"
    least: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    seen: float
    """Seconds since the epoch."""


def read_least_distance(host: str, processor: str, threads: int, *, now: float | None = None) -> float | None:
    """Return the least distance that was seen within a day on this machine, by its name and its processor's; None if
    there is none."""
    try:
        stored = _StoredDistance.model_validate_json(_get_entry_path(host, processor, threads).read_bytes())
    except (OSError, ValidationError):
        return None
    age = (time.time() if now is None else now) - stored.seen
    return stored.least if 0 <= age < _KEPT_SECONDS else None


def keep_least_distance(distance: float, host: str, processor: str, threads: int) -> None:
    """Keep the least distance, as seen now. An unwritable cache is ignored."""
    entry = _StoredDistance(least=distance, seen=time.time())
    write_cache_entry(_get_entry_path(host, processor, threads), entry.model_dump_json(indent=1))


def _get_entry_path(host: str, processor: str, threads: int) -> Path:
    name = re.sub(r"[^A-Za-z0-9.+]+", "-", f"{host}_{processor}_{threads}-threads")
    return get_cache_directory() / f"processors-{name}.json"
