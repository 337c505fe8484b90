"""Page faults of calls that map memory, and of calls that do not."""

from __future__ import annotations

import mmap
import resource

import pytest

from frx_graph.measure import page_faults
from frx_graph.measure.page_faults import PageFaults, count_page_faults, read_page_faults

pytestmark = pytest.mark.skipif(read_page_faults() is None, reason="the system does not count page faults")
PAGES = 500


def map_pages() -> None:
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE) as mapped:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            mapped.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(PAGES):
            mapped[page * mmap.PAGESIZE] = 1


def test_each_page_that_is_mapped_anew_is_a_fault() -> None:
    found = count_page_faults(map_pages, calls=5)
    assert found is not None
    assert len(found.calls) == 5
    assert PAGES <= found.per_call < PAGES + 50
    assert found.bytes_per_call == found.per_call * resource.getpagesize()


def test_a_call_that_reuses_its_memory_has_none() -> None:
    memory = bytearray(PAGES * mmap.PAGESIZE)

    def step() -> None:
        for page in range(PAGES):
            memory[page * mmap.PAGESIZE] = 1

    found = count_page_faults(step)
    assert found is not None
    assert found.per_call < 10


def test_a_heap_that_grows_once_does_not_count() -> None:
    assert PageFaults((0, 0, 9_000, 0, 3), 4096).per_call == 0
    # Of two in the middle the smaller, which is a count.
    assert PageFaults((10, 20), 4096).per_call == 10


def test_a_system_that_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_faults, "read_page_faults", lambda: None)
    assert count_page_faults(map_pages) is None
