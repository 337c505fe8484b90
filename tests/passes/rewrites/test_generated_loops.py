"""Loops that Inductor writes for poolings and upsampling: what is timed of them, and what their times decide."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch._inductor.inductor_prims
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.compiler_graphs import wrap_aot_graph
from frx_graph.facts.build import build_graph_facts
from frx_graph.passes.rewrites.generated_loops import list_loop_calls
from frx_graph.passes.rewrites.layout.anchor_calls import list_anchor_orders
from frx_graph.passes.rewrites.layout.assignment import (
    apply_orders,
    find_cheapest_orders,
    find_undecided_loops,
    propose_orders,
)
from frx_graph.passes.rewrites.layout.costs import MemberContext, build_order_problem
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Candidate, Refusal

PLAIN, CHANNELS_LAST = (0, 1, 2, 3), (0, 2, 3, 1)
IMAGE, WEIGHT = (2, 8, 16, 16), (8, 8, 3, 3)
COPY = 1.0
"""Seconds of a conversion of an image of that size."""
BANDWIDTH = 2 * 4 * 2 * 8 * 16 * 16 / COPY
POOL = "_low_memory_max_pool_with_offsets"


def pool(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.prims._low_memory_max_pool_with_offsets(x, [3, 3], [1, 1], [1, 1], [1, 1], False)


def between_convolutions(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    return torch.conv2d(pool(torch.conv2d(x, v, padding=1))[0], w, padding=1)


def traced(program, *shapes: tuple[int, ...], inner: str = "inductor") -> tuple[RewriteSubject, torch.fx.GraphModule]:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        module = make_fx(program)(*(mode.from_tensor(torch.empty(shape)) for shape in shapes))
    module.graph.eliminate_dead_code()
    captured = wrap_aot_graph(module, graph_id="test", phase=Phase.FORWARD, train=False, static_inputs=())
    subject = RewriteSubject(
        facts=build_graph_facts(captured),
        phase=Phase.FORWARD,
        inner=inner,
        bandwidth_bytes_per_s=BANDWIDTH,
        observable_outputs=frozenset(captured.outputs_visible),
    )
    return subject, module


def priced(
    subject: RewriteSubject, convolution: tuple[float, float], loops: Mapping[str, tuple[float, float]]
) -> RewriteSubject:
    """With seconds for every convolution and some loops, plain first."""
    return replace(
        subject,
        seconds={m.op.node: dict(zip(list_anchor_orders(m), convolution, strict=True)) for m in subject.anchors},
        loop_seconds={node: dict(zip((PLAIN, CHANNELS_LAST), both, strict=True)) for node, both in loops.items()},
    )


def chosen(subject: RewriteSubject) -> dict[str, str]:
    found = [outcome for outcome in propose_orders(subject, "test") if isinstance(outcome, Candidate)]
    return {node: choice for one in found for node, choice in zip(one.nodes, one.choices, strict=True)}


def test_only_where_the_compiler_writes_its_loop_a_pooling_is_one() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.ops.aten.max_pool2d_with_indices(torch.conv2d(x, w), [2, 2])[0]

    eager, inductor = (traced(program, IMAGE, WEIGHT, inner=inner)[0] for inner in ("eager", "inductor"))
    assert eager.loops == ()
    assert [loop.op.operator for loop in inductor.loops] == ["aten.max_pool2d_with_indices"]
    assert len(inductor.anchors) == 1
    assert [loop.op.node for loop in traced(between_convolutions, IMAGE, WEIGHT, WEIGHT)[0].loops] == [POOL]


def test_the_time_of_a_pooling_decides_for_the_convolutions_around_it() -> None:
    subject, _ = traced(between_convolutions, IMAGE, WEIGHT, WEIGHT)
    # Channels-last gains half a second at each convolution, and costs one at each edge.
    convolutions = (2.0, 1.5)
    gains = priced(subject, convolutions, {POOL: (10.0, 8.5)})
    assert set(find_cheapest_orders(gains).values()) == {CHANNELS_LAST}
    assert chosen(gains)[POOL] == "read as 0,2,3,1"
    # A pooling that gains less than the one second that is missing.
    assert set(find_cheapest_orders(priced(subject, convolutions, {POOL: (10.0, 9.2)})).values()) == {PLAIN}
    # The same with no times: loops cost the same in every order.
    assert set(find_cheapest_orders(priced(subject, convolutions, {})).values()) == {PLAIN}


def test_a_pooling_is_given_the_order_that_it_was_timed_in() -> None:
    subject, module = traced(between_convolutions, IMAGE, WEIGHT, WEIGHT)
    gains = priced(subject, (1.0, 9.0), {POOL: (10.0, 7.5)})
    assert chosen(gains) == {"convolution": "0,1,2,3", POOL: "read as 0,2,3,1", "convolution_1": "0,1,2,3"}
    (candidate,) = propose_orders(gains, "test")
    assert isinstance(candidate, Candidate)
    assert len(apply_orders(gains, module, candidate)) == 2
    (read,) = next(node for node in module.graph.nodes if node.name == POOL).all_input_nodes
    assert read.name.startswith("inductor_force_stride_order")
    assert read.meta["val"].stride() == (2048, 1, 128, 8)


def test_two_conversions_cost_more_than_a_pooling_gains() -> None:
    subject, _ = traced(between_convolutions, IMAGE, WEIGHT, WEIGHT)
    # What is read by a loop that was timed is a copy: both conversions cost a second each.
    assert chosen(priced(subject, (1.0, 9.0), {POOL: (10.0, 8.5)}))[POOL] == "read as 0,1,2,3"


def test_untimed_pooling_is_reported_and_follows_its_neighbours() -> None:
    subject, module = traced(between_convolutions, IMAGE, WEIGHT, WEIGHT)
    refusal, candidate = propose_orders(priced(subject, (9.0, 1.0), {}), "test")
    assert isinstance(refusal, Refusal)
    assert refusal.nodes == (POOL,)
    assert isinstance(candidate, Candidate)
    assert dict(zip(candidate.nodes, candidate.choices, strict=True))[POOL] == "0,2,3,1"
    # In front of the first convolution, and behind the second.
    assert len(apply_orders(subject, module, candidate)) == 2


def test_an_order_that_was_not_timed_costs_as_much_as_the_present_one() -> None:
    subject, _ = traced(between_convolutions, IMAGE, WEIGHT, WEIGHT)
    other = (0, 3, 1, 2)
    anchors = {m.op.node: {PLAIN: 1.0, CHANNELS_LAST: 2.0} for m in subject.anchors}
    loops = {POOL: {PLAIN: 3.0, CHANNELS_LAST: 4.0}}
    around = MemberContext(subject.facts, "inductor", subject.observable_outputs, loops)
    (member,) = [m for m in subject.members if m.op.node == POOL]
    problem = build_order_problem(subject.members, around, {**anchors, POOL: {other: 0.0}}, 1 / BANDWIDTH)
    (place,) = [index for index, m in enumerate(problem.members) if m is member]
    assert problem.problem.nodes[place].seconds == {PLAIN: 3.0, CHANNELS_LAST: 4.0, other: 3.0}


def test_nothing_is_timed_where_nothing_is_open() -> None:
    subject, _ = traced(between_convolutions, IMAGE, WEIGHT, WEIGHT)
    assert [loop.op.node for loop in find_undecided_loops(priced(subject, (1.0, 1.0), {}))] == [POOL]
    # No order but the present one comes from anywhere.
    assert find_undecided_loops(replace(subject, seconds={})) == ()
    unknown = replace(priced(subject, (1.0, 1.0), {}), bandwidth_bytes_per_s=None)
    assert find_undecided_loops(unknown) == ()


def test_what_is_timed_of_a_pooling_is_what_is_read_of_it() -> None:
    subject, _ = traced(between_convolutions, IMAGE, WEIGHT, WEIGHT)
    calls = list_loop_calls(subject.loops[0], subject.facts)
    assert set(calls) == {PLAIN, CHANNELS_LAST}
    last = calls[CHANNELS_LAST]
    assert last.signature.tensors[0].strides == (2048, 1, 128, 8)
    assert [(read.position, read.strides) for read in last.results] == [(0, (2048, 1, 128, 8))]
    both, _ = traced(pool, IMAGE)
    assert [read.position for read in list_loop_calls(both.loops[0], both.facts)[PLAIN].results] == [0, 1]


@pytest.mark.parametrize(("window", "same"), [(2, True), (5, True), (6, False)])
def test_a_pooling_has_the_same_times_before_and_after_it_is_taken_apart(window: int, same: bool) -> None:
    def whole(x: Tensor) -> Tensor:
        return torch.ops.aten.max_pool2d_with_indices(x, [window, window])[0]

    def apart(x: Tensor) -> Tensor:
        two = [window, window]
        return torch.ops.prims._low_memory_max_pool_with_offsets(x, two, two, [0, 0], [1, 1], False)[0]

    before, after = (traced(program, IMAGE)[0] for program in (whole, apart))
    found = [list_loop_calls(subject.loops[0], subject.facts) for subject in (before, after)]
    assert (found[0] == found[1]) == same


def gather(x: Tensor, *places: Tensor | None) -> Tensor:
    return torch.ops.aten._unsafe_index.Tensor(x, [None, None, *places])


def grid(down: int, across: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(down, 1, dtype=torch.int64), torch.zeros(across, dtype=torch.int64)


def test_gathers_from_one_image_share_a_loop() -> None:
    def program(x: Tensor) -> Tensor:
        return gather(x, *grid(32, 32)) + gather(x, *grid(32, 32)), gather(x, *grid(4, 4))

    subject, _ = traced(program, IMAGE)
    assert [list_loop_calls(loop, subject.facts)[PLAIN].times for loop in subject.loops] == [2, 2, 1]


@pytest.mark.parametrize(
    ("places", "resizes"),
    [
        pytest.param(lambda: grid(32, 20), True, id="a grid"),
        pytest.param(lambda: (torch.zeros(5, dtype=torch.int64),) * 2, False, id="pairs of places"),
        pytest.param(lambda: grid(3, 5)[::-1], False, id="a grid the other way round"),
        pytest.param(lambda: (torch.zeros(5, dtype=torch.int64),), False, id="rows"),
        pytest.param(lambda: (torch.zeros(5, 1, dtype=torch.int64), None), False, id="one dimension more"),
    ],
)
def test_a_gather_resizes_where_it_reads_a_grid(places, resizes: bool) -> None:
    given = places()
    subject, _ = traced(lambda x: gather(x, *given), IMAGE)
    assert [loop.op.operator for loop in subject.loops] == ["aten._unsafe_index"] * resizes
