"""Writes reach a value or not by the strides of weights: programs on prepared weights write as eager does on them."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frx_graph

pytestmark = [
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
    pytest.mark.usefixtures("channels_last_is_fastest"),
]

IMAGE = torch.randn(2, 3, 8, 9, generator=torch.Generator().manual_seed(0))


class Writing(nn.Module):
    """Writes into what `seen` makes of a convolution's result, or of its weight."""

    def __init__(self, seen: Callable[[Tensor], Tensor], into_weight: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 8, 3, padding=1)
        self.seen = seen
        self.into_weight = into_weight
        self.writes = True

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if self.writes and self.into_weight:
            with torch.no_grad():
                self.seen(self.last.weight).clamp_(-0.01, 0.01)
        elif self.writes:
            self.seen(y).clamp_(max=0.1)
        return self.last(y)


SEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "reshape": lambda y: y.reshape(-1),
    "flatten": lambda y: y.flatten(1),
    "contiguous": lambda y: y.contiguous(),
}


def outcome(program: nn.Module, weights: nn.Module) -> list[Tensor]:
    found = program(IMAGE)
    parameters = list(weights.parameters())
    gradients = torch.autograd.grad(found.square().sum(), parameters) if found.requires_grad else ()
    return [found.detach(), *(parameter.detach() for parameter in parameters), *gradients]


def assert_as_eager(compiled: Any, model: nn.Module, twin: nn.Module) -> None:
    ours, expected = outcome(compiled, model), outcome(twin, twin)
    assert [value.shape for value in ours] == [value.shape for value in expected]
    assert ours[0].stride() == expected[0].stride()
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def prepared(model: Writing) -> Writing:
    """Prepared for a call that writes nothing."""
    model.writes = False
    frx_graph.prepare(model, (IMAGE,), inner="eager")
    assert not model.last.weight.is_contiguous()
    model.writes = True
    return model


def assert_that_it_writes_as_eager(model: Writing, train: bool, inner: str) -> None:
    twin = copy.deepcopy(prepared(model))
    compiled = torch.compile(model, backend="frx", options={"plan": "all", "inner": inner})
    with torch.set_grad_enabled(train):
        for _ in range(2):
            assert_as_eager(compiled, model, twin)


@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.integration)])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("into_weight", [False, True])
@pytest.mark.parametrize("seen", SEEN)
def test_a_compiled_program_writes_as_eager(seen: str, into_weight: bool, train: bool, inner: str) -> None:
    model = Writing(SEEN[seen], into_weight)
    assert_that_it_writes_as_eager(model, train, inner)


@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.integration)])
def test_a_frozen_program_writes_as_eager(inner: str) -> None:
    model = prepared(Writing(SEEN["reshape"])).eval()
    twin = copy.deepcopy(model)
    compiled = frx_graph.compile(model, options={"plan": "all", "inner": inner, "freeze": True})
    with torch.no_grad():
        assert_as_eager(compiled, model, twin)


class OfValues(Writing):
    """Makes what has a size that only values tell, which fakes are asked for, or not."""

    returns = False

    def forward(self, x: Tensor) -> Any:
        y = self.last(self.first(x))
        if self.writes and self.returns:
            return y, torch.nonzero(x)
        if self.writes:
            count = (x.abs().sum() > 0).int().item() + 1
            torch._check(count >= 1)
            torch._check(count < 9)
            return (y * torch.ones(count, 1).view(count)[0],)
        return (y,)


@pytest.mark.integration
@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
@pytest.mark.parametrize("returns", [False, True])
def test_graphs_with_data_dependent_sizes_keep_their_strides(returns: bool) -> None:
    model = OfValues(SEEN["reshape"])
    twin = copy.deepcopy(prepared(model))
    compiled = torch.compile(model, backend="frx", options={"plan": "all", "inner": "eager"})
    model.returns = twin.returns = returns
    with torch.no_grad():
        for model.writes in (False, True):
            twin.writes = model.writes
            for ours, own in zip(compiled(IMAGE), twin(IMAGE), strict=True):
                assert ours.stride() == own.stride()
                torch.testing.assert_close(ours, own, rtol=1e-3, atol=1e-4)
