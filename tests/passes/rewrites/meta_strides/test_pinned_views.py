"""Views that an operator's kernel would make impossible, though its fake does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from frx_graph.passes.rewrites.meta_strides.pinned_views import pin_views

IMAGE = torch.randn(2, 8, 5, 6)
LAST = IMAGE.contiguous(memory_format=torch.channels_last)


def traced(program: Callable[[Tensor], Tensor], value: Tensor, *, symbolic: bool = False) -> fx.GraphModule:
    if symbolic:
        return make_fx(program, tracing_mode="symbolic")(value)
    with FakeTensorMode() as mode:
        return make_fx(program)(mode.from_tensor(value))


def pinned(module: fx.GraphModule) -> bool:
    before = len(module.graph.nodes)
    pin_views(module.graph)
    module.recompile()
    return len(module.graph.nodes) > before


def merged(x: Tensor) -> Tensor:
    return torch.ops.aten.channel_shuffle(x, 2).view(-1, *x.shape[2:])


def turned(x: Tensor) -> Tensor:
    return torch.roll(x, 1, 1).permute(0, 2, 3, 1)


def flat(x: Tensor) -> Tensor:
    return torch.ops.aten.channel_shuffle(x, 2).view(*x.shape[:2], -1)


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_view_that_raises_reads_what_it_was_traced_with(symbolic: bool) -> None:
    module = traced(merged, LAST, symbolic=symbolic)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        module(LAST)
    assert pinned(module)
    expected = merged(IMAGE)
    result = module(LAST)
    assert torch.equal(result, expected)
    assert result.stride() == expected.stride()


def test_view_with_the_traced_strides_is_not_copied() -> None:
    module = traced(merged, LAST)
    pin_views(module.graph)
    shuffle = next(node for node in module.graph.nodes if node.target is torch.ops.aten.channel_shuffle.default)
    view = next(node for node in module.graph.nodes if node.target is torch.ops.aten.view.default)
    module.graph.output_node().args = ((shuffle, view),)
    module.recompile()
    shuffled, viewed = module(IMAGE)
    assert shuffled.data_ptr() == viewed.data_ptr()


def test_other_readers_read_it_as_before() -> None:
    module = traced(lambda x: (y := torch.ops.aten.channel_shuffle(x, 2)).view(-1, 5, 6).sum(0) + y.sin(), LAST)
    assert pinned(module)
    sine = next(node for node in module.graph.nodes if node.target is torch.ops.aten.sin.default)
    assert sine.args[0].target is torch.ops.aten.channel_shuffle.default


@pytest.mark.parametrize("program", [turned, flat])
@pytest.mark.parametrize("image", [IMAGE, LAST])
def test_views_of_any_order_are_left_alone(program: Callable[[Tensor], Tensor], image: Tensor) -> None:
    module = traced(program, image)
    assert not pinned(module)
    assert torch.equal(module(image), program(image))
