"""Bytes and FLOPs, worked out by hand on the smallest graphs and held against torch's own counter on real ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, ValueFacts
from frx_graph.passes.costs.operator_costs import OpCost, count_op_costs, count_step_traffic, list_roofline_points
from frx_graph.passes.costs.operator_flops import load_flop_formulas
from frx_graph.passes.costs.operator_traffic import count_distinct_bytes


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


@pytest.fixture
def facts_of(analyse):
    return lambda model, *args, train=False: analyse(model, *args, train=train).facts


@pytest.fixture
def costs_of(facts_of):
    """Costs by operator name without its namespace, of operators that cost anything."""

    def costs(function, *args: Tensor) -> dict[str, OpCost]:
        facts = facts_of(Function(function), *args)
        costs = count_op_costs(facts)
        return {
            op.operator.rpartition(".")[2]: costs[op.node]
            for op in facts.ops
            if costs[op.node].bytes or costs[op.node].flops
        }

    return costs


X = torch.randn(4, 8)
IMAGE = torch.randn(1, 1, 4, 6)


@pytest.mark.parametrize(
    ("function", "args", "operator", "read", "written", "flops"),
    [
        (lambda x: x + 1, (X,), "add", 128, 128, 32),
        (lambda x: x * x, (X,), "mul", 128, 128, 32),
        (lambda x, b: x + b, (X, torch.randn(8)), "add", 128 + 32, 128, 32),
        (lambda x, b: x + b.expand(4, 8), (X, torch.randn(8)), "add", 128 + 32, 128, 32),
        (lambda x: x[:, ::2] + 1, (X,), "add", 64, 64, 16),
        (lambda x: x.add_(1), (X,), "add_", 128, 128, 32),
        (lambda x, y: x.copy_(y), (X, torch.randn(8)), "copy_", 32, 128, 0),
        (lambda x: torch.zeros_like(x), (X,), "zeros_like", 0, 128, 0),
        (lambda x: x.to(torch.float64), (X,), "_to_copy", 128, 256, 0),
        (lambda x: x.t().contiguous(), (X,), "clone", 128, 128, 0),
        (lambda x: x.sum(1), (X,), "sum", 128, 16, 32),
        *(
            (lambda x, name=name: getattr(x, name)(1), (X,), name, 128, written, 32)
            for name, written in [("nansum", 16), ("mean", 16), ("amax", 16), ("amin", 16), ("argmax", 32)]
        ),
        (lambda x: x.cumsum(1), (X,), "cumsum", 128, 128, 32),
        (lambda x: functional.avg_pool2d(x, (2, 3)), (IMAGE,), "avg_pool2d", 96, 16, 6 * 4),
        (lambda x: functional.avg_pool2d(x, 2), (IMAGE,), "avg_pool2d", 96, 24, 4 * 6),
        (lambda x: functional.max_pool2d(x, 2), (IMAGE,), "max_pool2d_with_indices", 96, 24 + 48, 4 * 6),
        (lambda x: torch.softmax(x, 1), (X,), "_softmax", 128, 128, 160),
        (lambda x: x @ x.t(), (X,), "mm", 128, 64, 2 * 4 * 4 * 8),
        (lambda w, i: functional.embedding(i, w), (X, torch.tensor([1, 2])), "embedding", 64 + 16, 64, 0),
        (lambda x, i: x[i], (X, torch.tensor([0, 3, 3])), "index", 96 + 24, 96, 0),
        (lambda x, i: torch.gather(x, 1, i), (X, torch.zeros(4, 1, dtype=torch.long)), "gather", 16 + 32, 16, 0),
        (
            lambda x, i, y: x.index_put_((i,), y),
            (X, torch.tensor([1]), torch.randn(1, 8)),
            "index_put_",
            8 + 32,
            32,
            0,
        ),
    ],
)
def test_one_operator(costs_of, function, args, operator, read, written, flops):
    assert costs_of(function, *args)[operator] == OpCost(read + written, flops)


def test_views_and_allocations_are_free(costs_of):
    costs = costs_of(lambda x: (x.view(2, 16).t().unsqueeze(0), torch.empty_like(x), x.detach()), X)

    assert costs == {}


def test_reshape_that_copies_costs_one_copy(costs_of):
    costs = costs_of(lambda x: x.t().reshape(-1), X)

    assert {name: cost.bytes for name, cost in costs.items()} == {"clone": 256}


def test_three_slices_of_one_tensor_are_read_once(costs_of):
    costs = costs_of(lambda x: torch.cat(x.split(4, dim=1)), X)

    assert costs["cat"].bytes == 256


def test_a_custom_operator_moves_its_operands_and_its_arithmetic_is_unknown(costs_of):
    @torch.library.custom_op("frx_test_costs::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)

    assert costs_of(lambda x: twice(x), X) == {"twice": OpCost(256, None)}


def test_a_registered_formula_of_a_custom_operator_is_used(costs_of):
    @torch.library.custom_op("frx_test_costs::cube", mutates_args=())
    def cube(x: Tensor) -> Tensor:
        return x**3

    cube.register_fake(torch.empty_like)
    torch.utils.flop_counter.register_flop_formula(torch.ops.frx_test_costs.cube)(
        lambda shape, **_: 2 * shape[0] * shape[1]
    )

    assert "frx_test_costs.cube" in load_flop_formulas()
    assert costs_of(lambda x: cube(x), X) == {"cube": OpCost(256, 64)}


def test_batch_norm_with_stored_statistics_is_one_multiply_add(facts_of):
    model = nn.BatchNorm2d(3)
    x = torch.randn(2, 3, 4, 4)

    inference = count_op_costs(facts_of(model, x))
    training = count_op_costs(facts_of(model, x, train=True))

    assert max(cost.flops or 0 for cost in inference.values()) == 2 * x.numel()
    assert max(cost.flops or 0 for cost in training.values()) == 13 * x.numel()


class Mixed(nn.Module):
    """Every kind of operator that torch's counter knows, in one net."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.volume = nn.Conv1d(6, 4, 3, dilation=2)
        self.project = nn.Linear(60, 24)
        self.attention = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(functional.gelu(self.conv(x)))
        y = self.project(self.volume(y.flatten(2)).flatten(0, 1)[:, :60])
        heads = self.attention(y.view(-1, 3, 8)).unsqueeze(1)
        mixed = functional.scaled_dot_product_attention(heads, heads, heads)
        weights = torch.softmax(heads @ heads.transpose(-1, -2), -1)
        return (mixed + weights @ heads).sum()


@pytest.mark.parametrize("train", [False, True])
def test_flops_equal_torchs_counter(facts_of, train):
    model, x = Mixed(), torch.randn(2, 3, 16, 16, requires_grad=train)
    facts = facts_of(model, x, train=train)
    costs = count_op_costs(facts)
    counted = {"aten.convolution_backward", *load_flop_formulas()}

    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(train):
        loss = model(x)
        if train:
            loss.backward()

    assert sum(costs[op.node].flops or 0 for op in facts.ops if op.operator in counted) == counter.get_total_flops()


def test_attention_is_two_products_forward_and_five_backward(facts_of):
    """Also where torch has no formula for the kernel that it chose, as 2.13 has none for the CPU's."""
    batch, heads, length, width = 2, 3, 16, 8
    qkv = [torch.randn(batch, heads, length, width, requires_grad=True) for _ in range(3)]
    facts = facts_of(Function(functional.scaled_dot_product_attention), *qkv, train=True)
    costs = count_op_costs(facts)

    flops = [costs[op.node].flops for op in facts.ops if "scaled_dot_product" in op.operator]

    product = 2 * batch * heads * length * length * width
    assert flops == [2 * product, 5 * product]


def test_backward_of_a_grouped_convolution_is_that_of_its_groups(facts_of):
    x = torch.randn(2, 8, 6, 6, requires_grad=True)
    groups = 4

    def backward_flops(model: nn.Module, x: Tensor) -> int:
        facts = facts_of(model, x, train=True)
        costs = count_op_costs(facts)
        return sum(costs[op.node].flops or 0 for op in facts.ops if op.operator == "aten.convolution_backward")

    one = backward_flops(nn.Conv2d(8 // groups, 8 // groups, 3), x[:, : 8 // groups].detach().requires_grad_())

    assert backward_flops(nn.Conv2d(8, 8, 3, groups=groups), x) == groups * one


def test_a_first_convolution_has_no_gradient_of_its_input(facts_of):
    facts = facts_of(nn.Conv2d(3, 8, 3), torch.randn(2, 3, 6, 6), train=True)
    costs = count_op_costs(facts)

    forward, backward = (costs[op.node].flops for op in facts.ops if "convolution" in op.operator)

    assert backward == forward


def test_step_traffic_is_the_sum_over_operators(facts_of):
    facts = facts_of(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), X)

    linear = 4 * (4 * 8 + 8 * 16 + 16 + 4 * 16)
    assert count_step_traffic(facts) == linear + 2 * 4 * 4 * 16


def test_roofline_points_gather_the_calls_of_one_line(facts_of):
    class Repeated(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = torch.tanh(x)
            return x

    facts = facts_of(Repeated(), X)

    (point,) = list_roofline_points(facts)

    assert (point.operator, point.count, point.flops, point.bytes, point.dtype) == ("aten.tanh", 3, 96, 768, "float32")
    assert point.phase is Phase.FORWARD
    assert point.seconds is None


def test_points_count_every_run_of_the_graph(facts_of):
    facts = replace(facts_of(Function(torch.sin), X), calls=3)

    (point,) = list_roofline_points(facts)

    assert (point.count, point.flops, point.bytes) == (3, 96, 768)


def test_backward_and_forward_are_points_of_their_own(facts_of):
    points = list_roofline_points(facts_of(nn.Linear(8, 4), X, train=True))

    assert {point.phase for point in points} == {Phase.FORWARD, Phase.BACKWARD}


def value(shape: list[int], strides: list[int]) -> ValueFacts:
    return ValueFacts(
        name="x",
        shape=tuple(shape),
        strides=tuple(strides),
        dtype=torch.int8,
        device=torch.device("cpu"),
        storage=0,
        producer=None,
        users=(),
    )


dims = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=4)


@given(dims)
def test_distinct_bytes_bound_the_memory_that_is_reached(sizes_and_strides):
    shape = [size for size, _ in sizes_and_strides]
    strides = [stride for _, stride in sizes_and_strides]
    offsets = {0}
    for size, stride in sizes_and_strides:
        offsets = {offset + index * stride for offset in offsets for index in range(size)}

    bound = count_distinct_bytes([value(shape, strides)], {0: max(offsets) + 1})

    assert len(offsets) <= bound <= max(offsets) + 1


def test_all_facts_are_costed(facts_of):
    facts = facts_of(Mixed(), torch.randn(2, 3, 16, 16))
    assert isinstance(facts, GraphFacts)

    assert set(count_op_costs(facts)) == {op.node for op in facts.ops}
