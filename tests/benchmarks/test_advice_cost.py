"""The judgement of the cost benchmark, and the synthetic graph that it times."""

from __future__ import annotations

import cProfile
import pstats
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from advice_cost import AnalysisCost, CallCost, CompileCost, broken_bounds, exponent
from hypothesis import given
from hypothesis import strategies as st
from synthetic_graph import synthetic_capture

from frx_graph.advisor.advisor import advise_capture
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.graph_facts import GraphFacts

COMPILE = CompileCost("net", 5, 10.0, 10.9, 10.0, 10.9, 0.1)
CALL = CallCost(400, 10e-6, 11.9e-6)
ANALYSES = [AnalysisCost(n, 10, n * 1e-4, n * 1e-3, 10**9) for n in (1_000, 10_000, 100_000)]


@given(st.floats(0.5, 3), st.floats(1e-6, 1.0))
def test_exponent_of_a_power_law(power: float, factor: float) -> None:
    sizes = [1e3, 1e4, 1e5]
    assert exponent(sizes, [factor * n**power for n in sizes]) == pytest.approx(power)


def test_costs_within_all_bounds() -> None:
    assert broken_bounds([COMPILE], CALL, ANALYSES) == []


def test_slower_compilation_is_named() -> None:
    (broken,) = broken_bounds([COMPILE, replace(COMPILE, network="slow", frx_s=11.1)], CALL, ANALYSES)
    assert broken.startswith("slow: compiling takes 1.110 times")


def test_slower_call_is_named() -> None:
    (broken,) = broken_bounds([COMPILE], replace(CALL, frx_s=12.1e-6), ANALYSES)
    assert broken.startswith("a call takes 2.10 µs longer")


def test_superlinear_analysis_is_named() -> None:
    quadratic = [replace(cost, seconds=cost.nodes**2 * 1e-10) for cost in ANALYSES]
    (broken,) = broken_bounds([], None, quadratic)
    assert broken.startswith("analysis time grows as nodes^2.00")


def test_slow_and_large_analysis_is_named() -> None:
    slow = [replace(cost, seconds=cost.seconds * 3, peak_bytes=3 * 10**9) for cost in ANALYSES]
    assert len(broken_bounds([], None, slow)) == 2


def synthetic_facts(nodes: int) -> GraphFacts:
    (graph,) = synthetic_capture(nodes).graphs
    return build_graph_facts(graph)


def test_synthetic_graph_is_mixed_and_grows_block_by_block() -> None:
    small, large = synthetic_facts(2), synthetic_facts(100)
    one, many = (Counter(op.operator for op in facts.ops) for facts in (small, large))
    blocks = many["aten.convolution"]
    assert {"aten.convolution", "aten.bmm", "aten.permute", "aten.clone", "aten.native_layer_norm"} <= set(one)
    assert many == Counter({name: count * blocks for name, count in one.items()})


def test_synthetic_graph_has_shared_and_own_lines() -> None:
    facts = synthetic_facts(100)
    lines = Counter(op.site.line for op in facts.ops)
    assert set(lines.values()) >= {1, 2}
    assert (
        len({op.site.module_path for op in facts.ops}) == Counter(op.operator for op in facts.ops)["aten.convolution"]
    )


def count_calls(nodes: int) -> Counter[str]:
    """How often each of our functions is called to advise on a graph of so many nodes."""
    capture = synthetic_capture(nodes)
    with cProfile.Profile() as profile:
        advise_capture(capture, target="synthetic", measure=False)
    calls: Counter[str] = Counter()
    for (file, _, function), (_, count, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if "frx_graph" in file:
            calls[f"{Path(file).name}:{function}"] += count
    return calls


def test_no_function_is_called_more_than_in_proportion_to_the_graph() -> None:
    count_calls(1)
    small, large = count_calls(250), count_calls(1000)
    # Four times the nodes. The rest is for functions that are called a few times, whatever the size.
    assert {name: (small[name], count) for name, count in large.items() if count > 5 * small[name] + 100} == {}
