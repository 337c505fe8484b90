import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from frx_graph.errors import RewriteError
from frx_graph.passes.rewrites.conversion import aten_conversion, inductor_conversion
from frx_graph.passes.rewrites.relayout import Wanted, relayout, same_strides

CHANNELS_LAST = Wanted((0, 2, 3, 1))


def traced(program, *shapes: tuple[int, ...]) -> fx.GraphModule:
    with FakeTensorMode() as mode:
        return make_fx(program)(*(mode.from_tensor(torch.empty(shape)) for shape in shapes))


def as_text(graph: fx.Graph) -> list[str]:
    return [f"{n.format_node()} {getattr(n.meta.get('val'), 'stride', tuple)()}" for n in graph.nodes]


def keeps_all(_node: str) -> bool:
    return True


def keeps_none(_node: str) -> bool:
    return False


def test_a_value_is_converted_once_for_all_its_readers() -> None:
    module = traced(lambda x: (x.sin() + x.cos(), x.exp()), (2, 3, 4, 5))
    demands = {"sin": {"x_1": CHANNELS_LAST}, "cos": {"x_1": CHANNELS_LAST}}
    inserted = relayout(module.graph, demands, convert=aten_conversion, keeps_strides=keeps_none)
    assert len(inserted) == 1
    strides = {node.name: node.meta["val"].stride() for node in module.graph.nodes if "val" in node.meta}
    assert strides["add"] == (60, 1, 15, 3)
    assert strides["exp"] == (60, 20, 5, 1)


def test_who_keeps_its_strides_gets_them_back() -> None:
    module = traced(lambda x: x.sin().cos(), (2, 3, 4, 5))
    inserted = relayout(
        module.graph,
        {"sin": {"x_1": CHANNELS_LAST}},
        convert=aten_conversion,
        keeps_strides=lambda node: node == "cos",
    )
    assert len(inserted) == 2
    x = torch.randn(2, 3, 4, 5)
    module.recompile()
    result = module(x)
    assert result.stride() == x.stride()
    assert torch.equal(result, x.sin().cos())


def test_outputs_keep_even_the_strides_that_mean_nothing() -> None:
    module = traced(lambda x: x.sin(), (2, 1, 4, 5))
    demands = {"sin": {"x_1": Wanted((0, 2, 3, 1), exactly=True)}}
    relayout(module.graph, demands, convert=aten_conversion, keeps_strides=keeps_none, kept_outputs=["sin"])
    module.recompile()
    assert module(torch.randn(2, 1, 4, 5)).stride() == (20, 20, 5, 1)


def test_inductors_conversion_asks_for_strides() -> None:
    module = traced(lambda x: x.sin(), (2, 3, 4, 5))
    (name,) = relayout(
        module.graph, {"sin": {"x_1": CHANNELS_LAST}}, convert=inductor_conversion, keeps_strides=keeps_none
    )
    (node,) = [node for node in module.graph.nodes if node.name == name]
    assert node.target is torch.ops.prims.inductor_force_stride_order.default
    assert node.args[1] == (60, 1, 15, 3)


def test_a_general_order_is_a_copy_between_two_permutes() -> None:
    module = traced(lambda x: x.sin(), (2, 3, 4))
    relayout(module.graph, {"sin": {"x_1": Wanted((2, 0, 1))}}, convert=aten_conversion, keeps_strides=keeps_none)
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
        relayout(module.graph, demands, convert=aten_conversion, keeps_strides=keeps_none)
    assert as_text(module.graph) == before
    module.graph.lint()


def test_gaps_are_not_filled_for_an_order_that_is_there() -> None:
    module = traced(lambda x: x[:, :2].sin(), (2, 3, 4, 5))
    (sliced,) = [node for node in module.graph.nodes if "slice" in node.name]
    plain = {"sin": {sliced.name: Wanted((0, 1, 2, 3))}}
    assert relayout(module.graph, plain, convert=aten_conversion, keeps_strides=keeps_none) == ()


def test_strides_of_dimensions_of_size_one_mean_nothing() -> None:
    assert same_strides(torch.empty(2, 1, 4), (4, 99, 1))
    assert not same_strides(torch.empty(2, 2, 4), (8, 99, 1))
    assert same_strides(torch.empty(0, 2, 4), (1, 1, 1))
