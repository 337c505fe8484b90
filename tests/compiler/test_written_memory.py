"""Writes reach a value or not by the strides of weights: programs whose weights are stored anew write as before."""

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


def stored_anew(model: Writing) -> bool:
    return not model.last.weight.is_contiguous()


def assert_that_it_writes_later_as_before(model: Writing, train: bool, inner: str) -> None:
    """In a graph that is compiled when its weights are stored anew."""
    twin = copy.deepcopy(model)
    model.writes = twin.writes = False
    compiled = frx_graph.compile(model, options={"plan": "all", "inner": inner})
    with torch.set_grad_enabled(train):
        assert_as_eager(compiled, model, twin)
        assert stored_anew(model)
        model.writes = twin.writes = True
        for _ in range(2):
            assert_as_eager(compiled, model, twin)
    assert stored_anew(model)


@pytest.mark.parametrize("seen", SEEN)
def test_weights_stay_where_a_write_would_miss(seen: str) -> None:
    model = Writing(SEEN[seen])
    refused = frx_graph.prepare(model, (IMAGE,), inner="eager").refused
    assert not stored_anew(model)
    assert any("shares memory with other values" in refusal.reason for refusal in refused)


@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.integration)])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("into_weight", [False, True])
@pytest.mark.parametrize("seen", SEEN)
def test_what_is_compiled_later_writes_as_before(seen: str, into_weight: bool, train: bool, inner: str) -> None:
    model = Writing(SEEN[seen], into_weight)
    assert_that_it_writes_later_as_before(model, train, inner)


@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.integration)])
def test_what_is_frozen_later_writes_as_before(inner: str) -> None:
    model = Writing(SEEN["reshape"]).train()
    twin = copy.deepcopy(model)
    model.writes = twin.writes = False
    compiled = frx_graph.compile(model, options={"plan": "all", "inner": inner, "freeze": True})
    assert_as_eager(compiled, model, twin)
    assert stored_anew(model)
    for module in (model, twin):
        module.eval()
        module.writes = True
    with torch.no_grad():
        assert_as_eager(compiled, model, twin)


class Strided(Writing):
    """Writes into a view of a convolution's result, or of a weight, that goes by strides."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if self.writes:
            with torch.no_grad():
                self.last.weight.as_strided((4, 5), (7, 1)).fill_(0.03)
            y.as_strided((4, 5), (7, 1)).mul_(2)
            seen = y.as_strided((2, 3), (1, 5))
            y.mul_(0.5)
            return self.last(y) + seen.sum()
        return self.last(y)


@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.integration)])
@pytest.mark.parametrize("train", [False, True])
def test_views_by_strides_are_views_of_what_they_were(train: bool, inner: str) -> None:
    model = Strided(SEEN["reshape"])
    assert_that_it_writes_later_as_before(model, train, inner)


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
def test_graphs_with_sizes_that_values_tell_lie_as_before(returns: bool) -> None:
    model = OfValues(SEEN["reshape"])
    twin = copy.deepcopy(model)
    compiled = frx_graph.compile(model, options={"plan": "all", "inner": "eager"})
    model.returns = twin.returns = returns
    versions = [weight._version for weight in model.parameters()]
    with torch.no_grad():
        for model.writes in (False, True):
            twin.writes = model.writes
            for ours, own in zip(compiled(IMAGE), twin(IMAGE), strict=True):
                assert ours.stride() == own.stride()
                torch.testing.assert_close(ours, own, rtol=1e-3, atol=1e-4)
            assert stored_anew(model)
    # Of weights that nobody writes into nothing is written back.
    assert [weight._version for weight in model.parameters()] == versions
