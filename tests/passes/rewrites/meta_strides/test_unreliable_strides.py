"""Results whose strides fakes are wrong about: brought to what was predicted, and nobody is converted by mistake."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from frx_graph.errors import RewriteError
from frx_graph.passes.rewrites.layout.conversion import convert_in_aten, restore_exact_strides
from frx_graph.passes.rewrites.layout.relayout import OrderConstraint, Reads, relayout
from frx_graph.passes.rewrites.meta_strides.unreliable_strides import fix_fake_strides, has_unreliable_meta_strides

CHANNELS_LAST = OrderConstraint((0, 2, 3, 1))


def traced(program: Callable[..., Tensor], *shapes: tuple[int, ...], symbolic: bool = False) -> fx.GraphModule:
    values = [torch.randn(shape) for shape in shapes]
    if symbolic:
        return make_fx(program, tracing_mode="symbolic")(*values)
    with FakeTensorMode() as mode:
        return make_fx(program)(*(mode.from_tensor(value) for value in values))


def node_of(module: fx.GraphModule, name: str) -> fx.Node:
    (found,) = [node for node in module.graph.nodes if node.name == name]
    return found


def shuffled_and_viewed(x: Tensor) -> Tensor:
    return torch.ops.aten.channel_shuffle(x.sin(), 2).view(2, -1)


def test_a_view_that_the_kernels_strides_forbid_is_refused() -> None:
    """The kernel keeps channels-last, and its fake does not."""
    module = traced(shuffled_and_viewed, (2, 4, 6, 6))
    before = str(module.graph)
    demands = {"sin": {"x_1": CHANNELS_LAST}}
    with pytest.raises(RewriteError, match="view"):
        relayout(module.graph, demands, convert=convert_in_aten, reads=lambda _: Reads.ANY, pins=True)
    assert str(module.graph) == before


def test_inductor_follows_the_fakes() -> None:
    module = traced(shuffled_and_viewed, (2, 4, 6, 6))
    relayout(
        module.graph, {"sin": {"x_1": CHANNELS_LAST}}, convert=convert_in_aten, reads=lambda _: Reads.ANY, pins=False
    )
    assert node_of(module, "channel_shuffle").meta["val"].is_contiguous()


def test_readers_are_planned_by_the_kernels_strides() -> None:
    module = traced(lambda x: torch.ops.aten.channel_shuffle(x.sin(), 2).cos(), (2, 4, 6, 6))
    demands = {"sin": {"x_1": CHANNELS_LAST}}
    relayout(module.graph, demands, convert=convert_in_aten, reads=lambda _: Reads.ANY, pins=True)
    assert node_of(module, "cos").meta["val"].is_contiguous(memory_format=torch.channels_last)
    calls = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    assert calls == ["aten.clone.default", "aten.sin.default", "aten.channel_shuffle.default", "aten.cos.default"]


def test_reliable_results_are_not_pinned() -> None:
    module = traced(lambda x: x.sin().cos(), (2, 4, 6, 6))
    demands = {"sin": {"x_1": CHANNELS_LAST}}
    relayout(module.graph, demands, convert=convert_in_aten, reads=lambda _: Reads.ANY, pins=True)
    calls = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    assert calls == ["aten.clone.default", "aten.sin.default", "aten.cos.default"]


@pytest.mark.parametrize(
    ("shape", "doubtful"), [((2, 4, 6, 6), False), ((2, 1, 6, 6), True), ((2, 4, 1, 1), True), ((1, 4), False)]
)
def test_dimensions_of_size_one_make_an_order_doubtful(shape: tuple[int, ...], doubtful: bool) -> None:
    module = traced(lambda x: 1 - x, shape)
    assert has_unreliable_meta_strides(node_of(module, "rsub")) is doubtful


def test_a_view_is_as_sure_as_what_it_views() -> None:
    module = traced(lambda x: x.transpose(1, 2), (2, 1, 6, 6))
    assert not has_unreliable_meta_strides(node_of(module, "transpose"))


def norm_without_statistics(x: Tensor) -> Tensor:
    return torch.ops.aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[0]


def norm_in_inference(x: Tensor) -> Tensor:
    statistics = torch.ones(x.shape[1])
    return torch.ops.aten._native_batch_norm_legit_no_training(x, None, None, statistics, statistics, 0.1, 1e-5)[0]


@pytest.mark.parametrize("norm", [norm_without_statistics, norm_in_inference])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 3, 1, 2], [3, 2, 1, 0], [0, 2, 1, 3]])
def test_batch_norm_of_a_permuted_operand_has_its_kernels_strides(
    norm: Callable[[Tensor], Tensor], order: list[int]
) -> None:
    """Its fake follows any operand; its kernel only plain and channels-last ones."""
    module = traced(lambda x: norm(torch.ops.aten.permute(x, order)), (2, 3, 4, 5))
    (call,) = [node for node in module.graph.nodes if "batch_norm" in node.name]
    corrected = fix_fake_strides(call, call.meta["val"])[0]
    assert corrected.stride() == norm(torch.randn(2, 3, 4, 5).permute(order)).stride()
    assert not has_unreliable_meta_strides(node_of(module, "getitem"))


def test_what_is_written_into_is_not_converted() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.ops.aten.copy_(x, x.sin())

    module = traced(program, (2, 4, 6, 6))
    demands = {"sin": {"x_1": CHANNELS_LAST}, "copy_": {"x_1": CHANNELS_LAST, "sin": CHANNELS_LAST}}
    relayout(module.graph, demands, convert=convert_in_aten, reads=lambda _: Reads.ANY)
    module.recompile()
    x = torch.randn(2, 4, 6, 6)
    expected = x.sin()
    module(x)
    assert torch.equal(x, expected)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("strides", [(30, 30, 5, 1), (30, 1, 5, 1)])
def test_strides_that_mean_nothing_are_given_exactly(symbolic: bool, strides: tuple[int, ...]) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.ops.aten.sin(x)

    module = traced(program, (2, 1, 6, 5), symbolic=symbolic)
    source = node_of(module, "sin")
    value = source.meta["val"]
    wanted = value
    if strides != (30, 30, 5, 1):
        _, _, h, w = value.shape
        wanted = torch.empty_strided(value.shape, (h * w, 1, w, 1), device="meta")
    with module.graph.inserting_before(module.graph.output_node()):
        exact = restore_exact_strides(module.graph, source, wanted)
    assert exact is not None
    module.graph.output_node().args = (exact,)
    module.recompile()
    for given in (torch.randn(2, 1, 6, 5), torch.randn(2, 6, 5, 1).permute(0, 3, 1, 2)):
        result = module(given)
        assert result.stride() == strides
        assert torch.equal(result, given.sin())
