from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from frx_graph.errors import RewriteError
from frx_graph.passes.rewrites.layout.conversion import convert_in_aten, convert_in_inductor
from frx_graph.passes.rewrites.layout.edits import has_same_strides
from frx_graph.passes.rewrites.layout.relayout import OrderConstraint, Reads, predict_inductor_storages, relayout

CHANNELS_LAST = OrderConstraint((0, 2, 3, 1))


def traced(program, *shapes: tuple[int, ...]) -> fx.GraphModule:
    with FakeTensorMode() as mode:
        return make_fx(program)(*(mode.from_tensor(torch.empty(shape)) for shape in shapes))


def as_text(graph: fx.Graph) -> list[str]:
    return [f"{n.format_node()} {getattr(n.meta.get('val'), 'stride', tuple)()}" for n in graph.nodes]


def anything(_node: str) -> Reads:
    return Reads.ANY


def test_a_value_is_converted_once_for_all_its_readers() -> None:
    module = traced(lambda x: (x.sin() + x.cos(), x.exp()), (2, 3, 4, 5))
    demands = {"sin": {"x_1": CHANNELS_LAST}, "cos": {"x_1": CHANNELS_LAST}}
    inserted = relayout(module.graph, demands, convert=convert_in_aten, reads=anything)
    assert len(inserted) == 1
    strides = {node.name: node.meta["val"].stride() for node in module.graph.nodes if "val" in node.meta}
    assert strides["add"] == (60, 1, 15, 3)
    assert strides["exp"] == (60, 20, 5, 1)


def test_operator_that_keeps_its_strides_gets_them_back() -> None:
    module = traced(lambda x: x.sin().cos(), (2, 3, 4, 5))
    inserted = relayout(
        module.graph,
        {"sin": {"x_1": CHANNELS_LAST}},
        convert=convert_in_aten,
        reads=lambda node: Reads.STRIDES if node == "cos" else Reads.ANY,
    )
    assert len(inserted) == 2
    x = torch.randn(2, 3, 4, 5)
    module.recompile()
    result = module(x)
    assert result.stride() == x.stride()
    assert torch.equal(result, x.sin().cos())


def test_outputs_keep_even_the_strides_that_mean_nothing() -> None:
    module = traced(lambda x: x.sin(), (2, 1, 4, 5))
    demands = {"sin": {"x_1": OrderConstraint((0, 2, 3, 1), exactly=True)}}
    relayout(module.graph, demands, convert=convert_in_aten, reads=anything, kept_outputs=["sin"])
    module.recompile()
    assert module(torch.randn(2, 1, 4, 5)).stride() == (20, 20, 5, 1)


def test_inductors_conversion_asks_for_strides() -> None:
    module = traced(lambda x: x.sin(), (2, 3, 4, 5))
    (name,) = relayout(module.graph, {"sin": {"x_1": CHANNELS_LAST}}, convert=convert_in_inductor, reads=anything)
    (node,) = [node for node in module.graph.nodes if node.name == name]
    assert node.target is torch.ops.prims.inductor_force_stride_order.default
    assert node.args[1] == (60, 1, 15, 3)


def test_a_general_order_is_a_copy_between_two_permutes() -> None:
    module = traced(lambda x: x.sin(), (2, 3, 4))
    relayout(module.graph, {"sin": {"x_1": OrderConstraint((2, 0, 1))}}, convert=convert_in_aten, reads=anything)
    module.recompile()
    x = torch.randn(2, 3, 4)
    result = module(x)
    assert result.stride() == (3, 1, 6)
    assert torch.equal(result, x.sin())


def test_what_cannot_run_on_the_strides_leaves_the_graph_as_it_was() -> None:
    # A view that merges channels and rows is none in channels-last.
    module = traced(lambda x: x.sin().view(2, 12, 5).cos(), (2, 3, 4, 5))
    before = as_text(module.graph)
    demands = {"sin": {"x_1": CHANNELS_LAST}}
    with pytest.raises(RewriteError, match="cannot be laid out"):
        relayout(module.graph, demands, convert=convert_in_aten, reads=anything)
    assert as_text(module.graph) == before
    module.graph.lint()


def test_gaps_are_not_filled_for_an_order_that_is_there() -> None:
    module = traced(lambda x: x[:, :2].sin(), (2, 3, 4, 5))
    (sliced,) = [node for node in module.graph.nodes if "slice" in node.name]
    plain = {"sin": {sliced.name: OrderConstraint((0, 1, 2, 3))}}
    assert relayout(module.graph, plain, convert=convert_in_aten, reads=anything) == ()


def test_strides_of_dimensions_of_size_one_mean_nothing() -> None:
    assert has_same_strides(torch.empty(2, 1, 4), (4, 99, 1))
    assert not has_same_strides(torch.empty(2, 2, 4), (8, 99, 1))
    assert has_same_strides(torch.empty(0, 2, 4), (1, 1, 1))


@pytest.mark.parametrize(("reads", "strides"), [(Reads.ORDER, (40, 20, 5, 1)), (Reads.ANY, (60, 1, 15, 3))])
def test_who_reads_an_order_needs_no_gaps(reads: Reads, strides: tuple[int, ...]) -> None:
    module = traced(lambda x: x.sin()[:, 1:].cos(), (2, 3, 4, 5))
    relayout(
        module.graph,
        {"sin": {"x_1": CHANNELS_LAST}},
        convert=convert_in_aten,
        reads=lambda node: reads if node == "cos" else Reads.ANY,
    )
    (cos,) = [node for node in module.graph.nodes if node.name == "cos"]
    assert cos.args[0].meta["val"].stride() == strides
    x = torch.randn(2, 3, 4, 5)
    module.recompile()
    assert torch.equal(module(x), x.sin()[:, 1:].cos())


def test_operator_that_reads_strides_cannot_get_gaps_from_a_copy() -> None:
    module = traced(lambda x: x.sin()[:, 1:].cos(), (2, 3, 4, 5))
    demands = {"sin": {"x_1": CHANNELS_LAST}}
    with pytest.raises(RewriteError, match="gaps"):
        relayout(
            module.graph,
            demands,
            convert=convert_in_aten,
            reads=lambda node: Reads.STRIDES if node == "cos" else Reads.ANY,
        )


def test_who_is_given_the_strides_from_before_is_not_run_again() -> None:
    module = traced(lambda x: x.sin().cos(), (2, 3, 4, 5))
    (cos,) = [node for node in module.graph.nodes if node.name == "cos"]
    value = cos.meta["val"]
    demands = {"sin": {"x_1": CHANNELS_LAST}}
    relayout(module.graph, demands, convert=convert_in_aten, reads=lambda _: Reads.STRIDES)
    assert cos.meta["val"] is value


@pytest.mark.parametrize("length", [2, 0])
def test_a_result_without_elements_is_returned_as_it_was_traced(rewrite, length: int) -> None:
    """`sum` makes strides for it that its fake does not know of, with one operand as with the other."""

    def program(x):
        return F.max_pool1d(x, 3, stride=2, padding=1)[:, :length].sum((0, 2), keepdim=True)

    x = torch.randn(2, 6, 6).transpose(1, 2)
    found = rewrite(program, x)
    assert found.outputs[0].stride() == program(x).stride()
    refused = [refusal.reason for graph in found.graphs for refusal in graph.done.refused]
    assert any("without elements" in reason for reason in refused) is (length == 0)
    assert bool(found.graphs[0].done.applied) is (length > 0)


def test_channels_last_is_restored_as_torchs_own_copies_make_it() -> None:
    """Kernels recognise it by the strides of dimensions of size 1, too, which an order of memory says nothing about."""
    module = traced(lambda x: x.sin(), (2, 4, 1, 3))
    relayout(module.graph, {"sin": {"x_1": OrderConstraint((0, 3, 1, 2))}}, convert=convert_in_aten, reads=anything)
    module.recompile()
    assert module(torch.randn(2, 4, 1, 3)).stride() == (12, 1, 12, 4)


def norm_gradient(gradient: torch.Tensor, image: torch.Tensor, *statistics: torch.Tensor) -> torch.Tensor:
    backward = torch.ops.aten.native_batch_norm_backward
    return backward(gradient, image.sin(), statistics[0], None, None, *statistics[1:], True, 1e-5, [True] * 3)[0]


def test_a_batch_norms_gradient_is_not_read_by_the_strides_of_its_input() -> None:
    # Channels-last but for the stride of a dimension of size 1, as convolutions leave gradients.
    gradient = torch.randn(1, 3, 4, 1).permute(0, 2, 3, 1)
    image = torch.randn(1, 4, 1, 3).to(memory_format=torch.channels_last)
    values = (gradient, image, torch.rand(4), image.mean((0, 2, 3)), image.var((0, 2, 3)).rsqrt())
    expected = norm_gradient(*values)
    with FakeTensorMode() as mode:
        module = make_fx(norm_gradient)(*(mode.from_tensor(value) for value in values))
    demands = {"sin": {"arg1_1": OrderConstraint((0, 1, 2, 3))}}
    assert relayout(module.graph, demands, convert=convert_in_aten, reads=anything, pins=True)
    module.recompile()
    torch.testing.assert_close(module(*values), expected)


@pytest.mark.parametrize("pins", [True, False])
@pytest.mark.parametrize(
    ("program", "view"), [(lambda x: x.sin(), False), (lambda x: x.sin().transpose(1, 2), True)], ids=["made", "viewed"]
)
def test_what_is_returned_is_a_view_only_where_it_was(program, view: bool, pins: bool) -> None:
    """Nobody may write into a view that a compiled graph returns. Under Inductor graphs return none."""
    module = traced(program, (2, 3, 1, 5))
    (returned,) = module.graph.output_node().all_input_nodes
    demands = {"sin": {"x_1": OrderConstraint((0, 2, 3, 1))}}
    relayout(module.graph, demands, convert=convert_in_aten, reads=anything, kept_outputs=[returned.name], pins=pins)
    module.recompile()
    x = torch.randn(2, 3, 1, 5)
    found = module(x)
    assert found.stride() == program(x).stride()
    assert torch.equal(found, program(x))
    if pins:
        assert found._is_view() is view


PROGRAMS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "two copies of one value": lambda x: ((y := x.sin()).clone(), y.clone()),
    "a copy of a copy": lambda x: ((y := x.sin()).clone().clone(), y.clone()),
    "a copy and a view of another": lambda x: ((y := x.sin()).clone(), y.clone().flatten(1)),
    "a copy and what it copies": lambda x: ((y := x.sin()).clone(), y),
    "two copies and what they copy": lambda x: ((y := x.sin()).clone(), y, y.clone()),
    "a copy of an input": lambda x: (x.clone(), x.clone()),
    "copies in another order": lambda x: tuple(y.clone(memory_format=torch.channels_last) for y in [x.sin()] * 2),
    "views of one value": lambda x: ((y := x.sin())[:1], y.flatten(1)),
    "values of their own": lambda x: (x.sin(), x.cos()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_outputs_in_one_memory(name: str) -> None:
    image = torch.randn(2, 3, 4, 5)
    with FakeTensorMode() as mode:
        module = make_fx(PROGRAMS[name])(mode.from_tensor(image))
    torch._dynamo.reset()
    returned = torch.compile(PROGRAMS[name])(image)
    numbers: dict[int, int] = {}
    found = [numbers.setdefault(value.untyped_storage().data_ptr(), len(numbers)) for value in returned]
    assert predict_inductor_storages(module.graph) == found
