"""Which operators share a kernel, and what that saves: by hand on small graphs, and against Inductor's own kernels."""

from __future__ import annotations

import networkx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import FEW_EXAMPLES
from torch import Tensor, nn
from torch._inductor import metrics
from torch.nn import functional

from frx_graph.passes.call_groups import shorten_operator_name
from frx_graph.passes.fusion.fusion_groups import Dataflow, compute_kernel_levels

X = torch.randn(16, 32)
N = X.nbytes


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


@pytest.fixture
def groups_of(analyse):
    def groups(function, *args: Tensor, train: bool = False):
        model = function if isinstance(function, nn.Module) else Function(function)
        analysis = analyse(model, *args, train=train)
        return [
            ([shorten_operator_name(op) for op in group.ops], group.bytes, group.saved_bytes)
            for group in analysis.kernels.groups
            if group.bytes
        ]

    return groups


def test_a_chain_is_one_group_that_reads_and_writes_once(groups_of):
    assert groups_of(lambda x: torch.relu(x).sin() + 1, X) == [(["relu", "sin", "add"], 6 * N, 4 * N)]


def test_a_value_that_is_needed_outside_is_still_written(groups_of):
    def function(x):
        y = torch.relu(x)
        return y, y.sin()

    assert groups_of(function, X) == [(["relu", "sin"], 4 * N, N)]


def test_views_do_not_end_a_group(groups_of):
    assert groups_of(lambda x: torch.relu(x).view(-1, 8).t().sin(), X) == [(["relu", "sin"], 4 * N, 2 * N)]


def test_layout_copies_are_left_to_the_copy_rules(groups_of):
    assert groups_of(lambda x: torch.relu(x).t().contiguous().sin(), X) == [(["relu", "sin"], 4 * N, 2 * N)]


def test_a_row_reduction_fuses_on_both_sides(groups_of):
    (names, _, saved), *rest = groups_of(lambda x: (lambda y: y / y.sum(1, keepdim=True))(torch.exp(x)), X)

    assert names == ["exp", "sum", "div"]
    assert saved == 3 * N + 2 * 16 * 4
    assert rest == []


@pytest.mark.parametrize("dim", [0, None])
def test_a_reduction_across_rows_ends_the_group(groups_of, dim):
    first, second = groups_of(lambda x: (lambda y: y / y.sum(dim))(torch.exp(x)), X)

    assert (first[0], second[0]) == (["exp", "sum"], ["div"])
    assert first[2] == N


@pytest.mark.parametrize(("dim", "groups"), [(1, [["relu", "softmax", "sin"]]), (0, [["relu"], ["softmax", "sin"]])])
def test_softmax_fuses_with_its_producer_along_rows_only(groups_of, dim, groups):
    assert [g[0] for g in groups_of(lambda x: torch.softmax(torch.relu(x), dim).sin(), X)] == groups


def test_batch_norm_in_training_runs_after_its_producer(groups_of):
    class Model(nn.Module):
        def forward(self, x):
            return torch.relu(functional.batch_norm(torch.sin(x), None, None, training=True))

    names = [group[0] for group in groups_of(Model(), X)]

    assert names == [["sin"], ["batch_norm", "relu"]]


def test_batch_norm_with_stored_statistics_fuses_on_both_sides(groups_of):
    mean, var = torch.zeros(32), torch.ones(32)

    names = [g[0] for g in groups_of(lambda x, m, v: functional.batch_norm(torch.sin(x), m, v).relu(), X, mean, var)]

    assert names == [["sin", "batch_norm", "relu"]]


def test_matrix_products_and_custom_operators_separate_groups(groups_of):
    @torch.library.custom_op("frx_test_fusion::opaque", mutates_args=())
    def opaque(x: Tensor) -> Tensor:
        return x.clone()

    opaque.register_fake(torch.empty_like)

    names = [g[0] for g in groups_of(lambda x, w: opaque(torch.relu(x) @ w).sin(), X, torch.randn(32, 32))]

    assert names == [["relu"], ["sin"]]


def test_a_residual_does_not_join_groups_around_a_product(groups_of):
    """The sum needs the product, the product needs the normalised value: one kernel for both would need itself."""
    linear = nn.Linear(32, 32)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = linear

        def forward(self, x):
            y = torch.relu(x)
            return y + self.linear(torch.sin(y))

    assert [g[0] for g in groups_of(Block(), X)] == [["relu", "sin"], ["add"]]


def test_a_side_branch_runs_where_it_is_needed(groups_of):
    def function(x, y, w):
        return torch.relu(y) + x @ w

    assert groups_of(function, X, X.clone(), torch.randn(32, 32)) == [(["relu", "add"], 5 * N, 2 * N)]


def test_readers_of_one_tensor_fuse_side_by_side(groups_of):
    assert groups_of(lambda x: (x.sin(), x.cos()), X) == [(["sin", "cos"], 4 * N, N)]


def test_readers_of_a_weight_do_not(groups_of):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(16, 32))

        def forward(self, x, y):
            return x * self.weight, y * self.weight

    assert [g[0] for g in groups_of(Scaled(), X, X.clone())] == [["mul"], ["mul"]]


def test_forward_and_backward_never_share_a_kernel(groups_of):
    x = X.clone().requires_grad_()

    groups = groups_of(lambda x: torch.sigmoid(x * 2).sum(), x, train=True)

    assert groups[0][0] == ["mul", "sigmoid", "sum"]
    assert all("sigmoid_backward" not in g[0] or "sigmoid" not in g[0] for g in groups)


def test_a_write_waits_for_the_readers_before_it(groups_of, analyse):
    def function(x, w):
        y = x @ w
        z = torch.sin(x)
        x.mul_(2)
        return y, z, x + 1

    analysis = analyse(Function(function), X.clone(), torch.randn(32, 32))
    levels = compute_kernel_levels(Dataflow(analysis.facts))
    by_name = {shorten_operator_name(op): levels[op.node] for op in analysis.facts.ops}

    assert by_name["mul"] > by_name["mm"]
    assert by_name["add"] >= by_name["mul"]


OPERATIONS = {
    "relu": torch.relu,
    "row": lambda x: x - x.amax(1, keepdim=True),
    "column": lambda x: x - x.mean(0),
    "product": lambda x: x @ x.t() @ x,
    "turn": lambda x: x.t().sin().t(),
}


@given(st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=2, max_size=8))
@settings(FEW_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_path_leaves_a_group_and_comes_back(analyse, names):
    def function(x):
        kept = x
        for name in names:
            kept, x = x, OPERATIONS[name](x) + kept
        return x

    analysis = analyse(Function(function), X)
    flow, groups = analysis.kernels.flow, analysis.kernels.groups
    kernel_of = {op.node: number for number, group in enumerate(groups) for op in group.ops}
    order = networkx.DiGraph()
    for op in analysis.facts.ops:
        for name in op.inputs:
            maker = flow.find_maker(flow.get_root(name))
            if maker is not None and flow.find_maker(op.outputs[0]) is op:
                order.add_edge(kernel_of.get(maker.node, maker.node), kernel_of.get(op.node, op.node))
    order.remove_edges_from(list(networkx.selfloop_edges(order)))

    assert networkx.is_directed_acyclic_graph(order)
    assert sorted(kernel_of) == sorted({op.node for group in groups for op in group.ops})
    assert all(0 <= group.saved_bytes <= group.bytes for group in groups)


@pytest.fixture
def inductor_bytes():
    """What Inductor itself counts its kernels to move."""
    torch._logging.set_logs(inductor_metrics=True)

    def count(function, *args: Tensor) -> int:
        metrics.reset()
        with (
            torch.no_grad(),
            torch._inductor.config.patch(fx_graph_cache=False),
            torch._functorch.config.patch(enable_autograd_cache=False),
        ):
            torch.compile(function)(*args)
        return metrics.num_bytes_accessed

    yield count
    torch._logging.set_logs()


@pytest.mark.integration
def test_inductor_moves_what_one_kernel_for_each_group_would(groups_of, inductor_bytes):
    def block(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        y = functional.layer_norm(torch.relu(x) + residual, (32,))
        return torch.softmax(y @ weight, -1).sin() * y

    args = (torch.randn(64, 32), torch.randn(64, 32), torch.randn(32, 32))
    groups = groups_of(block, *args)

    product = 4 * (64 * 32 + 32 * 32 + 64 * 32)
    assert sum(moved - saved for _, moved, saved in groups) + product == pytest.approx(
        inductor_bytes(block, *args), rel=0.05
    )


@pytest.mark.integration
def test_inductor_goes_twice_over_what_a_reduction_across_rows_needs(groups_of, inductor_bytes):
    def function(x: Tensor) -> Tensor:
        return (lambda y: y / y.sum())(torch.exp(x))

    assert sum(moved - saved for _, moved, saved in groups_of(function, X)) == pytest.approx(
        inductor_bytes(function, X), rel=0.01
    )
