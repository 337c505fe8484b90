"""Graphs with the shapes of real networks: which way solves them, that the ways agree, and that work stays linear."""

import itertools
import random
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from frx_graph.passes.solver.arrays import InstanceArrays
from frx_graph.passes.solver.elimination import find_elimination_order, solve_by_elimination
from frx_graph.passes.solver.expansion import solve_by_expansion
from frx_graph.passes.solver.instance import Instance
from frx_graph.passes.solver.lowering import lower
from frx_graph.passes.solver.problem import Given, Node, Port, Problem, Value
from frx_graph.passes.solver.solve import solve
from frx_graph.passes.solver.splitting import split_instance
from frx_graph.passes.solver.tables import tabulate
from frx_graph.passes.solver.two_labels import solve_by_cut

Edges = list[tuple[int, int]]


def chain(count: int) -> Edges:
    return list(itertools.pairwise(range(count)))


def residual(count: int) -> Edges:
    """Blocks of six operators, each with a way around it."""
    return chain(count) + [(first, first + 6) for first in range(0, count - 6, 6)]


def long_skips(count: int) -> Edges:
    """A U-Net: what goes down is read again on the way up."""
    return chain(count) + [(down, count - 1 - down) for down in range(1, count // 2 - 2, 3)]


def dense(count: int) -> Edges:
    """Everything is read by everything later."""
    return list(itertools.combinations(range(count), 2))


def problem(edges: Iterable[tuple[int, int]], count: int, labels: str, seed: int = 0) -> Problem:
    """Every third operator is an anchor with times of its own, from 0.1 to 10 ms, the others are agnostic; conversions
    take 10 µs to 1 ms."""
    draw = random.Random(seed)
    readers: list[list[Port]] = [[] for _ in range(count)]
    for tail, head in edges:
        readers[tail].append(Port(head))
    nodes = tuple(
        Node({label: 10 ** draw.uniform(-4, -2) if index % 3 == 0 else 0.0 for label in labels}, labels[0])
        for index in range(count)
    )
    inner = tuple(
        Value(Port(index), tuple(reading), seconds=10 ** draw.uniform(-5, -3))
        for index, reading in enumerate(readers)
        if reading
    )
    ends = Value(Given(labels[0]), (Port(0),), seconds=1e-4), Value(Port(count - 1), wanted=(labels[0],), seconds=1e-4)
    return Problem(nodes, (*inner, *ends))


def largest_part(asked: Problem) -> Instance:
    parts = split_instance(lower(asked))
    return max((part.instance for part in parts), key=lambda instance: len(instance.variables))


def ticks(instance: Instance, choices: tuple[int, ...]) -> tuple[int, int]:
    return InstanceArrays.from_instance(instance).sum_ticks(np.array(choices))


SHAPES = [chain, residual, long_skips, dense]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cut_and_an_elimination_find_the_same_two_labels(shape: Callable[[int], Edges]) -> None:
    instance = largest_part(problem(shape(14), 14, "ab"))
    by_cut, by_elimination = solve_by_cut(instance), solve_by_elimination(instance)
    assert by_cut is not None
    assert by_elimination is not None
    assert ticks(instance, by_cut) == ticks(instance, by_elimination)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", [chain, residual, long_skips])
def test_networks_are_narrow_enough_for_many_labels(shape: Callable[[int], Edges], seed: int) -> None:
    asked = problem(shape(300), 300, "abcde", seed)
    answer = solve(asked)
    assert answer.exact
    instance = largest_part(asked)
    exact = solve_by_elimination(instance)
    assert exact is not None
    assert ticks(instance, exact) <= ticks(instance, solve_by_expansion(instance))
    assert answer.seconds <= min(asked.sum_seconds([label] * 300) for label in "abcde")


def test_a_chain_is_as_cheap_as_a_shortest_path_through_its_labels() -> None:
    asked = problem(chain(50), 50, "abc")
    costs = dict(asked.nodes[0].seconds)
    costs = {label: seconds + (1e-4 if label != "a" else 0.0) for label, seconds in costs.items()}
    for node, value in zip(asked.nodes[1:], asked.values, strict=False):
        costs = {
            label: min(cost + value.price_conversion(before, label) for before, cost in costs.items()) + own
            for label, own in node.seconds.items()
        }
    least = min(cost + (1e-4 if label != "a" else 0.0) for label, cost in costs.items())
    assert solve(asked).seconds == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_a_dense_network_has_exact_labels_if_there_are_two(seed: int) -> None:
    asked = problem(dense(60), 60, "ab", seed)
    answer = solve(asked)
    assert answer.exact
    assert answer.seconds <= min(asked.sum_seconds([label] * 60) for label in "ab")


@pytest.mark.parametrize("seed", range(5))
def test_dense_network_of_many_labels_is_reported_as_inexact(seed: int) -> None:
    asked = problem(dense(60), 60, "abcde", seed)
    answer = solve(asked)
    assert not answer.exact
    assert answer.seconds == asked.sum_seconds(answer.labels)
    assert answer.seconds <= min(asked.sum_seconds([label] * 60) for label in "abcde")
    assert solve(asked) == answer


def test_two_labels_that_a_permute_renames_are_two_sides_still() -> None:
    asked = problem(chain(200), 200, "ab")
    renamed = {"a": "b", "b": "a"}
    swapped = tuple(Port(port.node, renamed) for port in asked.values[100].readers)
    turned = Value(asked.values[100].source, swapped, seconds=asked.values[100].seconds)
    instance = largest_part(Problem(asked.nodes, (*asked.values[:100], turned, *asked.values[101:])))
    by_cut, by_elimination = solve_by_cut(instance), solve_by_elimination(instance)
    assert by_cut is not None
    assert by_elimination is not None
    assert ticks(instance, by_cut) == ticks(instance, by_elimination)


@pytest.mark.parametrize("shape", [chain, residual, long_skips])
def test_elimination_is_linear_in_the_size_of_a_network(shape: Callable[[int], Edges]) -> None:
    entries = []
    for count in (600, 1200):
        choices, tables = tabulate(largest_part(problem(shape(count), count, "abcde")))
        order = find_elimination_order(choices, [table.scope for table in tables], largest=5**4)
        assert order is not None
        entries.append(order[1])
    assert entries[1] < 2.1 * entries[0]


def test_a_value_with_many_readers_does_not_make_a_graph_wide() -> None:
    readers = tuple(Port(index) for index in range(1, 200))
    nodes = (Node({"a": 0.0, "b": 0.1, "c": 0.2}, "a"),) + (Node({"a": 0.01, "b": 0.0, "c": 0.1}, "a"),) * 199
    answer = solve(Problem(nodes, (Value(Port(0), readers, seconds=0.15),)))
    assert answer.exact
    assert answer.labels == ("b",) * 200
    dear = solve(Problem(nodes, (Value(Port(0), readers, seconds=0.05),)))
    assert (dear.exact, dear.labels) == (True, ("a", *("b",) * 199))
