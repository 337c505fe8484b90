"""Gradients of weights of size 1x1 tell the strides that eager's do, whichever kernel the sizes of a call choose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore:frx applies rewrites")


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread has another kernel for batches below 16, which follows the weight."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    torch._dynamo.reset()
    yield
    torch.set_num_threads(before)
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(8, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 1, bias=False)
        self.last = nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x)).relu())


def strides(net: nn.Module, program: nn.Module, x: Tensor) -> dict[str, tuple[int, ...]]:
    net.zero_grad()
    y = program(x)
    y.backward(torch.ones(y.shape))
    return {name: parameter.grad.stride() for name, parameter in net.named_parameters() if parameter.grad is not None}


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.integration)])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=["plain", "channels-last"])
def test_strides_are_those_of_eager(inner: str, dynamic: bool, order: torch.memory_format) -> None:
    net = Net()
    compiled = torch.compile(net, backend="frx", dynamic=dynamic, options={"inner": inner, "plan": "all"})
    for batch in (2, 16):
        x = torch.randn(batch, 8, 12, 12).contiguous(memory_format=order)
        assert strides(net, compiled, x) == strides(net, net, x)
