from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from frx_graph.evidence.trace.intervals import (
    intersect_spans,
    is_covered,
    measure_exclusive,
    measure_union,
    merge_spans,
    subtract_spans,
    sum_spans,
)

SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: (min(pair), max(pair))), max_size=12
)
OWNED = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60), st.sampled_from("abc")).map(
        lambda span: (min(span[:2]), max(span[:2]), span[2])
    ),
    max_size=12,
)


@given(SPANS)
def test_the_union_counts_every_moment_once(spans: list[tuple[int, int]]) -> None:
    assert measure_union(spans) == len({time for start, end in spans for time in range(start, end)})


@given(SPANS, SPANS)
def test_more_spans_never_shorten_the_union(spans: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    assert measure_union(spans) <= measure_union(spans + more) <= measure_union(spans) + measure_union(more)


@given(OWNED)
def test_an_owner_runs_alone_where_no_other_owner_does(spans: list[tuple[int, int, str]]) -> None:
    expected = {owner: 0 for _, _, owner in spans}
    for time in range(60):
        running = {owner for start, end, owner in spans if start <= time < end}
        if len(running) == 1:
            expected[running.pop()] += 1
    assert measure_exclusive(spans) == expected


@given(OWNED)
def test_running_alone_is_what_the_union_loses_without_the_owner(spans: list[tuple[int, int, str]]) -> None:
    for owner, alone in measure_exclusive(spans).items():
        others = [(start, end) for start, end, other in spans if other != owner]
        assert alone == measure_union((start, end) for start, end, _ in spans) - measure_union(others)


def test_no_spans_take_no_time() -> None:
    assert measure_union([]) == 0
    assert measure_exclusive([]) == {}


def moments(spans: Iterable[tuple[int, int]]) -> set[int]:
    return {moment for start, end in spans for moment in range(start, end)}


@given(one=SPANS, other=SPANS)
def test_sets_of_spans_are_sets_of_moments(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    first, second = merge_spans(one), merge_spans(other)
    assert moments(first) == moments(one)
    assert all(end < start for (_, end), (start, _) in pairwise(first))
    assert sum_spans(first) == measure_union(one) == len(moments(one))
    assert moments(intersect_spans(first, second)) == moments(one) & moments(other)
    assert moments(subtract_spans(first, second)) == moments(one) - moments(other)
    assert {moment for moment in range(61) if is_covered(first, moment)} == moments(one)
