"""The solver's answers against every possible labelling."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frx_graph.errors import LabellingError
from frx_graph.passes.solver.problem import Given, Node, Port, Problem, Value
from frx_graph.passes.solver.solve import solve

SECOND_FRACTION = 2.0**-20
"""Times are small multiples of this, so that sums of them are exact and ties are frequent."""


@st.composite
def problems(draw: st.DrawFn, labels: str = "abcd", allowed: int = 4, nodes: int = 5, maps: bool = True) -> Problem:
    """Up to `nodes` operators, with values that fan out, come from outside and are wanted outside."""
    count = draw(st.integers(1, nodes))
    some_label = st.sampled_from(labels)
    times = st.integers(0, 12).map(lambda ticks: ticks * SECOND_FRACTION)
    hard = st.sampled_from([False] * 9 + [True]).flatmap(lambda yes: st.just(math.inf) if yes else times)
    pairs = st.dictionaries(st.tuples(some_label, some_label), hard, max_size=3)
    translation = st.dictionaries(some_label, some_label, max_size=2) if maps else st.just({})

    def port(index: int) -> Port:
        return Port(index, draw(translation))

    operators = []
    for _ in range(count):
        possible = draw(st.lists(some_label, min_size=1, max_size=allowed, unique=True))
        operators.append(Node({label: draw(hard) for label in possible}, draw(some_label)))
    values = []
    for _ in range(draw(st.integers(0, 6))):
        source = draw(st.none() | st.integers(0, count - 1))
        readers = draw(st.lists(st.integers(0, count - 1), max_size=4))
        values.append(
            Value(
                source=Given(draw(some_label)) if source is None else port(source),
                readers=tuple(port(reader) for reader in readers),
                wanted=tuple(draw(st.lists(some_label, max_size=2, unique=True))),
                seconds=draw(times),
                pair_seconds=draw(st.just({}) | pairs),
            )
        )
    tied = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=1))
    return Problem(tuple(operators), tuple(values), tuple((port(a), port(b)) for a, b in tied))


def best_of_all(problem: Problem) -> tuple[float, int]:
    """The fewest seconds of any labelling, and of those the fewest changes."""
    return min(
        (problem.seconds(labels), problem.changes(labels))
        for labels in itertools.product(*(node.seconds for node in problem.nodes))
    )


def check_best(problem: Problem) -> None:
    seconds, changes = best_of_all(problem)
    if seconds == math.inf:
        with pytest.raises(LabellingError):
            solve(problem)
        return
    answer = solve(problem)
    assert answer.exact
    assert answer.seconds == seconds == problem.seconds(answer.labels)
    assert problem.changes(answer.labels) == changes


@settings(max_examples=400, deadline=None)
@given(problems())
def test_up_to_four_labels_with_maps_and_ties(problem: Problem) -> None:
    check_best(problem)


@settings(max_examples=200, deadline=None)
@given(problems(labels="abcde", allowed=5, nodes=4, maps=False))
def test_up_to_five_labels(problem: Problem) -> None:
    check_best(problem)


@settings(max_examples=300, deadline=None)
@given(problems(labels="ab", allowed=2, nodes=8))
def test_the_same_two_labels_everywhere(problem: Problem) -> None:
    check_best(problem)


@settings(max_examples=200, deadline=None)
@given(problems(labels="abc", allowed=2, nodes=7))
def test_two_labels_that_differ_from_node_to_node(problem: Problem) -> None:
    check_best(problem)
