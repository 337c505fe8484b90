"""The cheapest layouts, against every possible choice, and the changes that lead there."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import OpFacts
from frx_graph.facts.layout import Layout
from frx_graph.measure.operators.operator_measurement import LayoutTimes
from frx_graph.passes.layouts.layout_choice import (
    NOISE_SHARE,
    find_cheapest_layouts,
    find_steady_layouts,
    list_layout_changes,
)
from frx_graph.passes.layouts.layout_problem import LayoutProblem, ValueCost, build_layout_problem
from frx_graph.passes.layouts.regions import LayoutGroup, RegionOperator, find_layout_groups

PLAIN, CHANNELS_LAST = Layout.PLAIN, Layout.CHANNELS_LAST
LAYOUTS = (PLAIN, CHANNELS_LAST)


def operator(index: int, layout: Layout) -> RegionOperator:
    op = OpFacts(
        node=f"n{index}",
        target="aten.convolution.default",
        operator="aten.convolution",
        args=(),
        kwargs={},
        inputs=(),
        outputs=(),
        mutates=(),
        phase=Phase.FORWARD,
        site=UNKNOWN_SITE,
    )
    return RegionOperator(op, 4, True, (), (), layout)


@st.composite
def problems(draw: st.DrawFn) -> LayoutProblem:
    """Up to seven operators in execution order, with values that fan out, come from outside and are wanted outside."""
    count = draw(st.integers(1, 7))
    seconds = st.integers(0, 40).map(float)
    labels = st.sampled_from(LAYOUTS)
    values = []
    for number in range(draw(st.integers(1, 9))):
        producer = draw(st.none() | st.integers(0, count - 1))
        later = range(0 if producer is None else producer + 1, count)
        readers = tuple(sorted(draw(st.sets(st.sampled_from(later), max_size=4)))) if later else ()
        values.append(
            ValueCost(
                name=f"v{number}",
                producer=producer,
                given=draw(st.none() | labels) if producer is None else None,
                readers=readers,
                wanted=tuple(sorted(draw(st.sets(labels)))) if producer is not None else (),
                conversion_bytes=draw(st.integers(1, 20)),
            )
        )
    pinned_index = draw(st.none() | st.integers(0, count - 1))
    current = [draw(labels) for _ in range(count)]
    tied = ((0, count - 1),) if count > 2 and draw(st.booleans()) and pinned_index is None else ()
    if tied:
        current[count - 1] = current[0]
    measured = draw(st.sets(st.integers(0, count - 1), min_size=1))
    return LayoutProblem(
        group=LayoutGroup(4, tuple(operator(i, layout) for i, layout in enumerate(current)), ()),
        values=tuple(values),
        times={index: {PLAIN: draw(seconds), CHANNELS_LAST: draw(seconds)} for index in measured},
        tied=tied,
        pinned={} if pinned_index is None else {pinned_index: current[pinned_index]},
        seconds_per_byte=1.0,
    )


def allowed(problem: LayoutProblem, labels: tuple[Layout, ...]) -> bool:
    return all(labels[a] is labels[b] for a, b in problem.tied) and all(
        labels[index] is layout for index, layout in problem.pinned.items()
    )


@given(problems())
def test_no_choice_is_cheaper(problem: LayoutProblem) -> None:
    choices = itertools.product(LAYOUTS, repeat=len(problem.group.operators))
    best = min(problem.sum_seconds(labels) for labels in choices if allowed(problem, labels))
    chosen = find_cheapest_layouts(problem)
    assert allowed(problem, chosen)
    assert problem.sum_seconds(chosen) == pytest.approx(best, abs=1e-5)


@given(problems())
def test_a_choice_that_gains_nothing_changes_nothing(problem: LayoutProblem) -> None:
    chosen = find_cheapest_layouts(problem)
    if problem.sum_seconds(problem.current) == pytest.approx(problem.sum_seconds(chosen), abs=1e-5):
        assert chosen == problem.current


@given(problems())
def test_the_gain_of_a_change_is_what_the_whole_costs_less(problem: LayoutProblem) -> None:
    for change in list_layout_changes(problem, find_cheapest_layouts(problem)):
        changed = {int(node[1:]) for node in change.nodes}
        after = tuple(change.target if i in changed else layout for i, layout in enumerate(problem.current))
        saved = problem.sum_seconds(problem.current) - problem.sum_seconds(after)
        assert change.gain_seconds == pytest.approx(saved)


@given(problems())
def test_steady_layouts_cost_no_more_than_a_uniform_layout_or_the_program(problem: LayoutProblem) -> None:
    steady = problem.sum_seconds(find_steady_layouts(problem))
    assert steady <= problem.sum_seconds(problem.current) + 1e-5
    if not problem.pinned:
        assert steady <= min(problem.sum_seconds((layout,) * len(problem.current)) for layout in LAYOUTS) + 1e-5


@given(problems())
def test_steady_layouts_give_up_no_more_than_noise(problem: LayoutProblem) -> None:
    steady = find_steady_layouts(problem)
    for change in list_layout_changes(problem, find_cheapest_layouts(problem), steady):
        assert change.gain_seconds <= NOISE_SHARE * change.before_seconds + 1e-5


def chain(*gains: float, conversion: float, current: Layout = PLAIN) -> LayoutProblem:
    """Anchors one after another; `gains` is what channels-last saves each, from 10 seconds."""
    count = len(gains)
    values = [ValueCost(f"v{i}", i, None, (i + 1,), (), int(conversion)) for i in range(count - 1)]
    return LayoutProblem(
        group=LayoutGroup(4, tuple(operator(i, current) for i in range(count)), ()),
        values=tuple(values),
        times={i: {PLAIN: 10.0, CHANNELS_LAST: 10.0 - gain} for i, gain in enumerate(gains)},
        tied=(),
        pinned={},
        seconds_per_byte=1.0,
    )


def test_a_region_is_cut_where_the_preference_turns() -> None:
    problem = chain(5, 4, -3, -6, conversion=2)
    assert find_cheapest_layouts(problem) == (CHANNELS_LAST, CHANNELS_LAST, PLAIN, PLAIN)


def test_a_region_is_not_cut_where_the_conversion_costs_more_than_it_gains() -> None:
    problem = chain(5, 4, -1, conversion=2)
    assert find_cheapest_layouts(problem) == (CHANNELS_LAST,) * 3


def test_two_parts_of_one_region_are_two_changes() -> None:
    problem = chain(8, -9, 8, conversion=1)
    changes = list_layout_changes(problem, find_cheapest_layouts(problem))
    assert [change.anchors for change in changes] == [("n0",), ("n2",)]
    assert [change.gain_seconds for change in changes] == [7.0, 7.0]
    assert [(change.entering, change.leaving) for change in changes] == [((), ("v0",)), (("v1",), ())]


def test_a_part_that_differs_by_noise_alone_is_not_cut_out() -> None:
    problem = chain(8, 8, -0.4, 8, 8, conversion=0)
    assert find_cheapest_layouts(problem)[2] is PLAIN
    assert find_steady_layouts(problem) == (CHANNELS_LAST,) * 5


def test_a_part_that_differs_by_more_is_cut_out() -> None:
    problem = chain(8, 8, -0.8, 8, 8, conversion=0)
    assert find_steady_layouts(problem) == find_cheapest_layouts(problem)
    assert find_steady_layouts(problem)[2] is PLAIN


def test_a_value_that_many_read_is_converted_once() -> None:
    values = (ValueCost("x", None, PLAIN, (0, 1, 2), (), 8),)
    problem = LayoutProblem(
        group=LayoutGroup(4, tuple(operator(i, PLAIN) for i in range(3)), ()),
        values=values,
        times={i: {PLAIN: 10.0, CHANNELS_LAST: 6.0} for i in range(3)},
        tied=(),
        pinned={},
        seconds_per_byte=1.0,
    )
    assert find_cheapest_layouts(problem) == (CHANNELS_LAST,) * 3
    (change,) = list_layout_changes(problem, find_cheapest_layouts(problem))
    assert (change.gain_seconds, change.conversion_bytes) == (4.0, 8)


def test_without_a_measured_anchor_nothing_changes() -> None:
    problem = chain(5, 4, conversion=1)
    unmeasured = LayoutProblem(problem.group, problem.values, {}, (), {}, 1.0)
    assert find_cheapest_layouts(unmeasured) == problem.current


class Mixed(nn.Module):
    """Wide and shallow, then narrow and deep: what is right for one half is wrong for the other."""

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
        self.shrink = nn.MaxPool2d(8)
        self.late = nn.Sequential(nn.Conv2d(64, 512, 1), nn.ReLU(), nn.Conv2d(512, 512, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return self.late(self.shrink(self.early(x))).mean((2, 3))


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_a_mixed_network_is_cut_at_its_smallest_value(analyse: Any, train: bool) -> None:
    facts = analyse(Mixed(), torch.randn(1, 64, 56, 56), train=train).facts
    (group,) = find_layout_groups(facts)
    early = [op.node for op in facts.ops if op.site.module_path.startswith("model.early")]
    times = {
        o.op.node: LayoutTimes(4e-3, 1e-3) if o.op.node in early else LayoutTimes(1e-3, 3e-3)
        for o in group.operators
        if o.op.operator.startswith("aten.convolution")
    }
    problem = build_layout_problem(group, facts, times, 10e9)
    chosen = dict(zip((o.op.node for o in group.operators), find_cheapest_layouts(problem), strict=True))
    assert {chosen[node] for node in times if node in early} == {CHANNELS_LAST}
    assert {chosen[node] for node in times if node not in early} == {PLAIN}
    pools = [op.node for op in facts.ops if "max_pool2d" in op.operator]
    # The pooling's result is 64 times smaller than its operand. Its backward, though, copies whatever is not in the
    # layout of the gradient that comes in, its operand among it, which has to be converted then all the same.
    assert {chosen[node] for node in pools} == {PLAIN if train else CHANNELS_LAST}
