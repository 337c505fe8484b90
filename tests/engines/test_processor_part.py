"""Trials beside each other on one node have processors of their own."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from frx_graph.engines.processor_part import ProcessorPart


def alone(processor: int) -> set[int]:
    """On its core, or nobody tells."""
    return {processor}


@given(usable=st.sets(st.integers(0, 500), min_size=1, max_size=60), parts=st.integers(1, 16))
def test_parts_are_alike_and_share_nothing(usable: set[int], parts: int) -> None:
    found = [ProcessorPart(number, parts).of(usable, alone) for number in range(parts)]
    assert {len(part) for part in found} == {max(1, len(usable) // parts)}
    assert all(part <= usable for part in found)
    if len(usable) >= parts:
        assert not any(one & other for one, other in combinations(found, 2))


def test_the_only_part_is_all_of_them() -> None:
    assert ProcessorPart(0, 1).of({4, 5, 9}, alone) == {4, 5, 9}


def test_processors_of_one_core_stay_together() -> None:
    """Four cores, whose second processors are the numbers from 4."""

    def core(processor: int) -> set[int]:
        return {processor % 4, processor % 4 + 4}

    assert ProcessorPart(0, 2).of(range(8), core) == {0, 1, 4, 5}
    assert ProcessorPart(1, 2).of(range(8), core) == {2, 3, 6, 7}


def test_where_nobody_tells_of_cores_neighbours_are_taken() -> None:
    assert ProcessorPart(1, 2).of({0, 1, 6, 7}, alone) == {6, 7}
