"""Cuts with capacities far beyond 32 bits, against every possible cut and an independent implementation."""

import itertools

import networkx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.passes.solver.instance import INFINITE
from frx_graph.passes.solver.minimum_cut import Network, find_source_side

SOURCE, SINK = 0, 1
EDGES = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 2**20) | st.integers(2**50, 2**50 + 3)), max_size=20
)


def network(edges: list[tuple[int, int, int]], size: int) -> Network:
    tails, heads, capacities = np.array(edges, dtype=np.int64).reshape(-1, 3).T
    return Network(size, tails, heads, capacities)


def cut_capacity(edges: list[tuple[int, int, int]], side: tuple[bool, ...]) -> int:
    return sum(capacity for tail, head, capacity in edges if side[tail] and not side[head])


@given(EDGES)
def test_the_least_cut_with_the_fewest_vertices(edges: list[tuple[int, int, int]]) -> None:
    side = tuple(find_source_side(network(edges, 7), SOURCE, SINK).tolist())
    sides = [(True, False, *rest) for rest in itertools.product((False, True), repeat=5)]
    least = min(cut_capacity(edges, other) for other in sides)
    assert cut_capacity(edges, side) == least
    assert sum(side) == min(sum(other) for other in sides if cut_capacity(edges, other) == least)


def test_a_difference_of_one_in_a_large_graph() -> None:
    random = np.random.default_rng(0)
    count = 300
    pairs = {(int(a), int(b)) for a, b in random.integers(2, count, (1200, 2)) if a != b}
    edges = [(a, b, int(random.integers(1, 2**44))) for a, b in sorted(pairs)]
    edges += [(SOURCE, v, int(random.integers(1, 2**44))) for v in range(2, count, 2)]
    edges += [(v, SINK, int(random.integers(1, 2**44))) for v in range(3, count, 2)]
    graph = networkx.DiGraph()
    for tail, head, capacity in edges:
        graph.add_edge(tail, head, capacity=capacity)
    side = tuple(find_source_side(network(edges, count), SOURCE, SINK).tolist())
    assert cut_capacity(edges, side) == networkx.minimum_cut_value(graph, SOURCE, SINK)


def test_infinite_edge_is_not_cut() -> None:
    edges = [(SOURCE, 2, INFINITE), (2, 3, 2**59), (3, SINK, INFINITE), (2, SINK, 2**59), (3, 2, INFINITE)]
    assert find_source_side(network(edges, 4), SOURCE, SINK).tolist() == [True, False, True, False]
