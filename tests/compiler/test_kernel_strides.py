"""Programs behind operators whose kernels make other strides than their fakes, with a plan: values and strides are
eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Read(nn.Module):
    """Applies `function` between two layers, and reads the result by address."""

    def __init__(self, function: Callable[[Tensor], Tensor], *, by_address: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.function = function
        self.by_address = by_address

    def forward(self, x: Tensor) -> Tensor:
        made = self.function(self.first(x))
        return torch.as_strided(made, (6, 8), (5, 1), 2).sin() if self.by_address else made


class Flatten(nn.Module):
    """Flattens a transposed matrix, which the kernel keeps transposed and the fake does not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.copysign((x * self.weight).t(), torch.ones(6, 1)).reshape(-1)


def image() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last)


def make_model(function: Callable[[Tensor], Tensor], *, by_address: bool) -> nn.Module:
    torch.manual_seed(0)
    return Read(function, by_address=by_address).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "channel shuffle": lambda y: F.channel_shuffle(y, 2),
    "copysign": lambda y: torch.copysign(y, torch.ones(8, 1, 1)),
    "roll": lambda y: torch.roll(y, 1, 2),
    "concatenation": lambda y: torch.cat([y, y * 2], 1),
}
pytestmark = pytest.mark.filterwarnings("ignore:frx applies rewrites that no trial has proved")
INNERS = ["eager", pytest.param("inductor", marks=pytest.mark.integration)]


def check(model: nn.Module, x: Tensor, inner: str, *, train: bool) -> None:
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="frx", options={"plan": "all", "inner": inner})
    with torch.set_grad_enabled(train):
        ours, own = compiled(x), twin(x)
    assert ours.stride() == own.stride()
    torch.testing.assert_close(ours, own)
    if train:
        ours.square().sum().backward()
        own.square().sum().backward()
        for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            assert mine.grad is not None
            assert theirs.grad is not None
            torch.testing.assert_close(mine.grad, theirs.grad)
            assert mine.grad.stride() == theirs.grad.stride()


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_that_are_read_by_address(name: str, inner: str, train: bool) -> None:
    check(make_model(FUNCTIONS[name], by_address=True), image(), inner, train=train)


@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_strides_of_what_is_returned(name: str, inner: str) -> None:
    check(make_model(FUNCTIONS[name], by_address=False), image(), inner, train=True)


@pytest.mark.parametrize("inner", INNERS)
def test_a_reshape_that_needs_a_copy(inner: str) -> None:
    check(Flatten(), torch.randn(5, 6), inner, train=True)
