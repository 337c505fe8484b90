"""The solver's answers against every possible labelling."""

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.errors import LabellingError
from frx_graph.passes.solver.problem import Given, Node, Port, Problem, Value
from frx_graph.passes.solver.solve import solve

STEP = 2.0**-20
"""Times are small multiples of this many seconds, so that sums of them are exact and ties are frequent."""


@st.composite
def problems(draw: st.DrawFn, labels: str, allowed: int, nodes: int, maps: bool, forbidden: bool = True) -> Problem:
    """Up to `nodes` operators, with values that fan out, come from outside and are wanted outside."""
    count = draw(st.integers(1, nodes))
    index = st.integers(0, count - 1)
    label = st.sampled_from(labels)
    # One time in about ten is infinite, where that is allowed.
    hard = st.integers(0, 14 if forbidden else 12).map(lambda number: number * STEP if number < 13 else math.inf)
    translation = st.dictionaries(label, label, max_size=2) if maps else st.just({})
    ports = st.builds(Port, index, translation)
    operators = st.builds(Node, st.dictionaries(label, hard, min_size=1, max_size=allowed), label)
    values = st.builds(
        Value,
        source=ports | label.map(Given),
        readers=st.lists(ports, max_size=4).map(tuple),
        wanted=st.lists(label, max_size=2, unique=True).map(tuple),
        seconds=hard,
    )
    return Problem(
        nodes=tuple(draw(st.lists(operators, min_size=count, max_size=count))),
        values=tuple(draw(st.lists(values, max_size=6))),
    )


def count_changes(problem: Problem, labels: Sequence[str]) -> int:
    """The number of nodes that `labels` changes."""
    return sum(node.current != label for node, label in zip(problem.nodes, labels, strict=True))


def best_of_all(problem: Problem) -> tuple[float, int]:
    """The fewest seconds of any labelling, and of those the fewest changes."""
    return min(
        (problem.sum_seconds(labels), count_changes(problem, labels))
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
    assert answer.seconds == seconds == problem.sum_seconds(answer.labels)
    assert count_changes(problem, answer.labels) == changes


@pytest.mark.integration
@given(problems(labels="abcd", allowed=4, nodes=5, maps=True))
def test_up_to_four_labels_with_maps(problem: Problem) -> None:
    check_best(problem)


@given(problems(labels="abcde", allowed=5, nodes=4, maps=False))
def test_up_to_five_labels(problem: Problem) -> None:
    check_best(problem)


@given(problems(labels="ab", allowed=2, nodes=8, maps=False))
def test_the_same_two_labels_everywhere(problem: Problem) -> None:
    check_best(problem)


@given(problems(labels="abc", allowed=2, nodes=7, maps=True))
def test_two_labels_that_differ_from_node_to_node(problem: Problem) -> None:
    check_best(problem)


@given(problems(labels="abcd", allowed=4, nodes=8, maps=True, forbidden=False))
def test_the_same_problem_has_the_same_answer(problem: Problem) -> None:
    try:
        first = solve(problem)
    except LabellingError:
        return
    assert solve(problem) == first


AGNOSTIC = {"plain": 0.0, "last": 0.0, "blocked": 0.0}


def test_program_stays_unchanged_at_equal_costs() -> None:
    nodes = tuple(Node(AGNOSTIC, current) for current in ("last", "last", "plain"))
    chain = (Value(Port(0), (Port(1),), seconds=1.0), Value(Port(1), (Port(2),), seconds=1.0))
    assert solve(Problem(nodes, chain)).labels == ("last", "last", "last")
    assert solve(Problem(nodes)).labels == ("last", "last", "plain")


def test_the_smallest_gain_counts_more_than_the_program() -> None:
    anchor = Node({"plain": 1.0, "last": 1.0 - 1e-9}, "plain")
    followers = tuple(Node(AGNOSTIC, "plain") for _ in range(1000))
    values = tuple(Value(Port(index), (Port(index + 1),), seconds=1e-3) for index in range(1000))
    assert set(solve(Problem((anchor, *followers), values)).labels) == {"last"}


def test_a_conversion_is_paid_once_for_all_readers() -> None:
    reader = Node({"last": 0.0}, "last")
    value = Value(Given("plain"), (Port(0), Port(1), Port(2)), wanted=("last",), seconds=0.5)
    assert solve(Problem((reader,) * 3, (value,))).seconds == 0.5


def test_each_label_that_is_read_is_paid() -> None:
    readers = (Node({"last": 0.0}, "last"), Node({"blocked": 0.0}, "last"))
    value = Value(Given("plain"), (Port(0), Port(1)), wanted=("plain",), seconds=0.5)
    assert solve(Problem(readers, (value,))).seconds == 1.0


def test_a_permute_reads_one_label_and_makes_another() -> None:
    convolution = Node({"plain": 3.0, "last": 1.0}, "plain")
    permute = Node({"plain": 0.0, "last": 0.0}, "plain")
    values = (
        Value(Port(0), (Port(1),), seconds=9.0),
        Value(Port(1, {"last": "plain", "plain": "permuted"}), wanted=("plain",), seconds=9.0),
    )
    answer = solve(Problem((convolution, permute), values))
    assert (answer.labels, answer.seconds) == (("last", "last"), 1.0)


def test_an_impossible_conversion_labels_nodes_together() -> None:
    slow, fast = Node({"plain": 0.0, "last": 2.0}, "plain"), Node({"plain": 3.0, "last": 0.0}, "plain")
    assert solve(Problem((slow, fast))).labels == ("plain", "last")
    tied = Value(Port(0), (Port(1),), seconds=math.inf)
    assert solve(Problem((slow, fast), (tied,))).labels == ("last", "last")


def test_a_node_without_a_label_is_an_error_that_names_it() -> None:
    with pytest.raises(LabellingError, match="node 1"):
        solve(Problem((Node({"plain": 0.0}, "plain"), Node({"last": math.inf}, "last"))))


@pytest.mark.parametrize("labels", ["ab", "abc"])
def test_a_conversion_that_cannot_be_avoided_is_an_error(labels: str) -> None:
    nodes = tuple(Node(dict.fromkeys(labels, 0.0), "a") for _ in range(2))
    through = Value(Port(0), (Port(1),), seconds=math.inf)
    into, out = Value(Given("a"), (Port(0),), seconds=math.inf), Value(Port(1), wanted=("a",), seconds=math.inf)
    assert solve(Problem(nodes, (into, through, out))).labels == ("a", "a")
    elsewhere = Value(Port(1), wanted=("d",), seconds=math.inf)
    with pytest.raises(LabellingError):
        solve(Problem(nodes, (into, through, elsewhere)))


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_invalid_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="not a time"):
        Problem((Node({"plain": seconds}, "plain"),))


def test_a_port_of_a_missing_node_is_refused() -> None:
    with pytest.raises(ValueError, match="no node 1"):
        Problem((Node(AGNOSTIC, "plain"),), (Value(Port(0), (Port(1),)),))


def test_nothing_is_labelled_at_once() -> None:
    assert solve(Problem(())).labels == ()
