"""Make glibc's allocator keep freed memory, and find out whether it may.

glibc gives large freed blocks back to the kernel: blocks over the `mmap` threshold at once, the top of the heap when it
exceeds the trim threshold. The next call faults every page in again. A compiled program allocates its buffers in every
call, so it may pay for thousands of page faults in each. With both thresholds out of reach, memory is pooled.

Sources: mallopt(3), malloc/malloc.c of glibc 2.36.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

# Numbers of malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3

NEVER_BYTES = 2_000_000_000
"""A threshold that no block reaches. mallopt takes an int, so it must stay below 2**31."""
TOP_PAD_BYTES = 64 * 2**20
"""The heap grows by at least this much, so a program reaches its size in few steps."""
POOLING_VARIABLES = {
    "MALLOC_TRIM_THRESHOLD_": str(NEVER_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(NEVER_BYTES),
    "MALLOC_TOP_PAD_": str(TOP_PAD_BYTES),
}
"""The same settings as environment variables, for a process that is about to start."""
_OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc", "hoard", "tbbmalloc", "snmalloc")
_pooled = False


class Allocation(StrEnum):
    """The allocator that serves tensors on the CPU."""

    DEFAULT = "default"
    """glibc with its own thresholds."""
    POOLED = "pooled"
    """glibc, which keeps what is freed."""
    CHOSEN = "chosen"
    """Another allocator, or glibc with thresholds that the environment sets."""
    UNKNOWN = "unknown"
    """Another C library."""


def pool_allocations() -> bool:
    """Make this process keep the memory that it frees. Returns True if it does so now; False if it uses another
    allocator, or one that the environment has set up. There is no way back: a threshold that was set once no longer
    adjusts itself."""
    global _pooled
    if _pooled or read_allocation() is not Allocation.DEFAULT:
        return _pooled
    mallopt = _find_mallopt()
    settings = (
        (_M_TRIM_THRESHOLD, NEVER_BYTES),
        (_M_TOP_PAD, TOP_PAD_BYTES),
        (_M_MMAP_THRESHOLD, NEVER_BYTES),
    )
    # All are set, also behind one that is refused: each helps alone.
    done = [mallopt is not None and mallopt(name, value) == 1 for name, value in settings]
    _pooled = all(done)
    return _pooled


def read_allocation() -> Allocation:
    """Return how this process gets its memory."""
    if _pooled:
        return Allocation.POOLED
    if find_process_allocator() is not None:
        return Allocation.CHOSEN
    return Allocation.DEFAULT if platform.libc_ver()[0] == "glibc" else Allocation.UNKNOWN


def find_process_allocator() -> str | None:
    """Return what chooses the allocator of this process, as `find_chosen_allocator` does."""
    return find_chosen_allocator(os.environ, _read_mapped_files())


def find_chosen_allocator(variables: Mapping[str, str], mapped: str = "") -> str | None:
    """Return what chooses the allocator of a process with these `variables`, and these `mapped` files as
    `/proc/PID/maps` lists them: a variable with its value, or a library's name. None: glibc as it is."""
    for name in sorted(variables):
        value = variables[name]
        if name.startswith("MALLOC_") and name.endswith("_"):
            return f"{name}={value}"
        if name == "GLIBC_TUNABLES" and "glibc.malloc." in value:
            return f"{name}={value}"
    preloaded = variables.get("LD_PRELOAD", "")
    return next((name for name in _OTHER_ALLOCATORS if f"lib{name}" in preloaded or f"/lib{name}" in mapped), None)


def _read_mapped_files() -> str:
    try:
        return Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _find_mallopt() -> Callable[[int, int], int] | None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return None
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    found: Callable[[int, int], int] = mallopt
    return found
