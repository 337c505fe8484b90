"""What one call shows is what autograd and eager make of it."""

import pytest
import torch
from torch import Tensor, nn

from frx_graph.capture.observed_call import calls_differ, observed_call

LAST = torch.channels_last
GAPS = torch.randn(2, 3, 8, 10)[..., 1:-1]
ONE_WITH_GAPS = torch.randn(2, 1, 8, 10)[..., 1:-1]


@pytest.mark.parametrize("stored", [torch.contiguous_format, LAST])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "image",
    [
        torch.randn(2, 3, 8, 8),
        torch.randn(2, 3, 8, 8).to(memory_format=LAST),
        torch.randn(2, 1, 8, 8),
        torch.randn(2, 1, 8, 8).to(memory_format=LAST),
        GAPS,
        GAPS.permute(0, 1, 3, 2),
        ONE_WITH_GAPS,
        torch.randn(2, 1, 8, 8).expand(2, 3, 8, 8),
    ],
)
def test_gradients_lie_as_leaves_get_them(image: Tensor, transposed: bool, stored: torch.memory_format) -> None:
    channels = image.shape[1]
    convolution = nn.ConvTranspose2d(channels, 4, 3) if transposed else nn.Conv2d(channels, 4, 3)
    model = convolution.to(memory_format=stored)
    leaf = image.detach().requires_grad_()
    seen = observed_call(model, (leaf,), {}, train=True)
    assert leaf.grad is None
    result = model(leaf)
    result.backward(torch.ones_like(result))
    assert leaf.grad is not None
    assert seen.kept_strides == {"argument 0": leaf.grad.stride()}


def test_gradients_that_would_lie_otherwise_are_a_difference() -> None:
    model = nn.ConvTranspose2d(1, 3, 3)
    leaf = ONE_WITH_GAPS.detach().requires_grad_()
    before = observed_call(model, (leaf,), {}, train=True)
    assert calls_differ(before, observed_call(model, (leaf,), {}, train=True)) is None
    after = observed_call(model.to(memory_format=LAST), (leaf,), {}, train=True)
    assert calls_differ(before, after) == "a gradient of what it is given would lie otherwise"
