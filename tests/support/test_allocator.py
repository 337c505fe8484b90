"""Pooled allocation: what the settings do to page faults, and when they are refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from frx_graph.support.allocator import (
    POOLING_VARIABLES,
    Allocation,
    find_allocation,
    find_chosen_allocator,
    read_allocation,
)

_CHURN = """
import ctypes, resource, sys
from frx_graph.support.allocator import pool_allocations, read_allocation

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)
libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)


def step():
    # Over glibc's highest automatic threshold (32 MiB), so it is mapped anew each time.
    place = libc.malloc(40 * 2**20)
    libc.memset(place, 1, 40 * 2**20)
    libc.free(place)


print(pool_allocations() if "pool" in sys.argv else None, read_allocation())
for _ in range(2):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() // 2**20)
"""


def run_churn(*args: str, **variables: str) -> list[str]:
    """Return what four steps printed: the result, the allocation, and the MiB that were faulted in."""
    plain = {name: value for name, value in os.environ.items() if find_chosen_allocator({name: value}) is None}
    done = subprocess.run(
        [sys.executable, "-c", _CHURN, *args],
        env={**plain, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()


@pytest.mark.skipif(read_allocation() is Allocation.UNKNOWN, reason="the C library is not glibc")
def test_pooled_memory_is_not_faulted_in_again() -> None:
    _, allocation, faulted = run_churn()
    assert allocation == "default"
    # Huge pages may hide some.
    assert int(faulted) > 0
    assert run_churn("pool") == ["True", "pooled", "0"]


@pytest.mark.skipif(read_allocation() is Allocation.UNKNOWN, reason="the C library is not glibc")
def test_the_variables_do_the_same_and_are_left_alone() -> None:
    assert run_churn(**POOLING_VARIABLES) == ["None", "pooled", "0"]
    assert run_churn("pool", **POOLING_VARIABLES) == ["True", "pooled", "0"]
    assert run_churn("pool", MALLOC_TRIM_THRESHOLD_="131072")[:2] == ["False", "chosen"]


@pytest.mark.parametrize(
    ("variables", "mapped", "chosen"),
    [
        ({}, "", None),
        ({"MALLOC_ARENA_MAX": "2", "PATH": "/bin"}, "7f00 r-xp /usr/lib/libc.so.6", None),
        ({"MALLOC_TRIM_THRESHOLD_": "1"}, "", "MALLOC_TRIM_THRESHOLD_=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, "", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.cpu.x86_shstk=on"}, "", None),
        ({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, "", "jemalloc"),
        ({}, "7f00-7f01 r-xp 0 08:01 1 /usr/lib/libtcmalloc_minimal.so.4", "tcmalloc"),
    ],
)
def test_what_chooses_the_allocator(variables: dict[str, str], mapped: str, chosen: str | None) -> None:
    assert find_chosen_allocator(variables, mapped) == chosen
    assert find_allocation(variables, mapped) is (Allocation.DEFAULT if chosen is None else Allocation.CHOSEN)


@pytest.mark.skipif(read_allocation() is Allocation.UNKNOWN, reason="the C library is not glibc")
def test_pooling_variables_beside_another_choice_are_that_choice() -> None:
    assert find_allocation(POOLING_VARIABLES) is Allocation.POOLED
    assert find_allocation({**POOLING_VARIABLES, "LD_PRELOAD": "libjemalloc.so.2"}) is Allocation.CHOSEN
    assert find_allocation({**POOLING_VARIABLES, "MALLOC_TOP_PAD_": "1"}) is Allocation.CHOSEN
