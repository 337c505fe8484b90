"""Make glibc's allocator keep freed memory, and find out whether it may.

glibc gives large freed blocks back to the kernel: blocks over the `mmap` threshold at once, the top of the heap when it
exceeds the trim threshold. The next call faults every page in again. A compiled program allocates its buffers in every
call, so it may pay for thousands of page faults in each. With trimming out of reach, and no block
mapped by itself, memory is pooled.

Sources: mallopt(3), malloc/malloc.c of glibc 2.31 and 2.36. A high `mmap` threshold would do the same, but older
versions refuse one over 32 MiB (`do_set_mmap_threshold`), and then pin it where it is.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

# Numbers of malloc.h.
_M_MXFAST = 1
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4

NEVER_BYTES = 2_000_000_000
"""A threshold that no block reaches. mallopt takes an int, so it must stay below 2**31."""
SMALLEST_RETURNED_BYTES = 128 * 2**10
"""glibc gives no less back to the kernel: its thresholds begin there (`DEFAULT_MMAP_THRESHOLD_MIN`)."""
TOP_PAD_BYTES = 64 * 2**20
"""The heap grows by at least this much, so a program reaches its size in few steps."""
POOLING_VARIABLES = {
    "MALLOC_TRIM_THRESHOLD_": str(NEVER_BYTES),
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(TOP_PAD_BYTES),
}
"""The same settings as environment variables, for a process that is about to start."""
_OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc", "hoard", "tbbmalloc_proxy", "snmalloc")


class Allocation(StrEnum):
    """The allocator that serves tensors on the CPU."""

    DEFAULT = "default"
    """glibc with its own thresholds."""
    POOLED = "pooled"
    """glibc, which keeps what is freed."""
    CHOSEN = "chosen"
    """Another allocator, or glibc with other thresholds that the environment sets."""
    UNKNOWN = "unknown"
    """Another C library."""


@dataclass(slots=True)
class _Process:
    own: Allocation | None = None
    pooled: bool = False


_PROCESS = _Process()


def pool_allocations(*, by_plan: bool = False) -> bool:
    """Make this process keep the memory that it frees. Returns True if it does so now; False if it uses another
    allocator, or one that the environment has set up. There is no way back: a threshold that was set once no longer
    adjusts itself. `by_plan`: the user has not asked for it, and decisions stay those for the default allocator."""
    own = read_allocation()
    if own is Allocation.POOLED or _PROCESS.pooled:
        if not by_plan:
            _PROCESS.own = Allocation.POOLED
        return True
    mallopt = _find_mallopt() if own is Allocation.DEFAULT else None
    if mallopt is None:
        return False
    settings = (
        (_M_TRIM_THRESHOLD, NEVER_BYTES),
        (_M_TOP_PAD, TOP_PAD_BYTES),
        (_M_MMAP_MAX, 0),
        # Otherwise malloc merges all small free blocks whenever a large one is freed. oneDNN allocates descriptors in
        # every call: merging takes 3 to 4 % of MobileNetV2 with batch 1.
        (_M_MXFAST, 0),
    )
    # mallopt returns 1 for done.
    _PROCESS.pooled = all(mallopt(name, value) == 1 for name, value in settings)
    if _PROCESS.pooled and not by_plan:
        _PROCESS.own = Allocation.POOLED
    return _PROCESS.pooled


def read_allocation() -> Allocation:
    """Return the allocation that the user has chosen for this process."""
    if _PROCESS.own is None:
        _PROCESS.own = find_allocation(_read_first_variables(), _read_mapped_files())
    return _PROCESS.own


def find_allocation(variables: Mapping[str, str], mapped: str = "") -> Allocation:
    """Return the allocation of a process that starts with these `variables`; `mapped` as for
    `find_chosen_allocator`."""
    if POOLING_VARIABLES.items() <= variables.items():
        variables = {name: value for name, value in variables.items() if name not in POOLING_VARIABLES}
        if find_chosen_allocator(variables, mapped) is None:
            return Allocation.POOLED
    if find_chosen_allocator(variables, mapped) is not None:
        return Allocation.CHOSEN
    return Allocation.DEFAULT if platform.libc_ver()[0] == "glibc" else Allocation.UNKNOWN


def find_process_allocator() -> str | None:
    """Return what chooses the allocator of this process, as `find_chosen_allocator` does."""
    return find_chosen_allocator(_read_first_variables(), _read_mapped_files())


def may_pool() -> bool:
    """Return True if processes that are started like this one can pool their memory."""
    return read_allocation() in (Allocation.DEFAULT, Allocation.POOLED)


def _read_first_variables() -> Mapping[str, str]:
    """Return the variables that this process was started with: glibc reads no later ones."""
    try:
        text = os.fsdecode(Path("/proc/self/environ").read_bytes())
    except OSError:
        return os.environ
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


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
