"""Depthwise convolutions in channels-last, trained under Inductor."""

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

from frx_graph import backend

pytestmark = pytest.mark.filterwarnings("ignore:frx applies rewrites")


def step(model: nn.Module, image: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    image.grad = None
    model(image).square().sum().backward()
    return [image.grad, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("layer", "exact"),
    [
        pytest.param(nn.Conv2d(8, 8, 3, groups=8), True, id="depthwise"),
        pytest.param(nn.Conv2d(8, 8, 3, groups=8, bias=False), True, id="without a bias"),
        pytest.param(nn.Conv2d(8, 8, 3, groups=4), False, id="groups of two"),
    ],
)
@pytest.mark.parametrize("frozen", [True, False])
def test_their_gradients_are_computed_in_channels_last(layer: nn.Module, exact: bool, frozen: bool) -> None:
    torch._dynamo.reset()
    backend.clear()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), layer, nn.ReLU()).requires_grad_(not frozen)
    # With everything forced, the forward makes them plain, and the backward what that saves channels-last again.
    image = torch.randn(2, 3, 12, 12).to(memory_format=torch.channels_last).requires_grad_()
    expected = [None if g is None else g.clone() for g in step(model, image)]
    with torch._inductor.utils.fresh_cache():
        compiled = torch.compile(model, backend="frx", options={"plan": "all"})
        made, sources = run_and_get_code(step, compiled, image)
    assert [g is None for g in made] == [g is None for g in expected]
    for ours, theirs in zip(made, expected, strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
            assert ours.stride() == theirs.stride()
    done = [c.rewrite for graph in backend.rewritten() for c in graph.applied]
    assert ("exact_gradients" in done) is exact
    assert any("frx_graph.convolution_gradients" in source for source in sources) is exact
