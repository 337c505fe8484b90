"""All that a program reaches is as it was: values, gradients, buffers, modes, generators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frx_graph
from frx_graph.capture.model import capture_model
from frx_graph.capture.model_state import preserved_state


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.norm(self.linear(x)), 0.5)

    def step(self, x: Tensor) -> Tensor:
        return self(x)


class Stepper:
    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: Tensor) -> Any:
        return self.net(x)


def _closure(net: Stateful) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        net.train()
        out: Tensor = net(x)
        net.eval()
        return out

    return step


@pytest.mark.parametrize(
    "program",
    [
        _closure,
        lambda net: functools.partial(lambda model, x: model(x), net),
        lambda net: net.step,
        Stepper,
    ],
)
@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_advice_on_a_function_leaves_what_it_closes_over_alone(
    program: Callable[[Stateful], Callable[..., Any]], inner: str
) -> None:
    net = Stateful().train()
    x = torch.randn(8, 4, requires_grad=True)
    kept = x.grad = torch.ones(8, 4)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    buffers = dict(net.named_buffers())
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)

    report = frx_graph.advise(program(net), (x,), train=True, observe=True, inner=inner, measure=False)

    assert report.advice.observed is not None, report.refusals
    assert torch.equal(torch.rand(3), expected)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(buffer is buffers[name] for name, buffer in net.named_buffers())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert x.grad is kept
    assert torch.equal(kept, torch.ones(8, 4))
    assert net.training
    assert net.norm.training


def test_modes_are_put_back_module_by_module() -> None:
    net = Stateful().eval()
    net.norm.train()
    with preserved_state(net):
        net.train()
    assert (net.training, net.linear.training, net.norm.training) == (False, False, True)


def test_observing_a_step_ends_where_the_callers_own_graph_begins() -> None:
    upstream = nn.Linear(4, 4)
    x = upstream(torch.randn(2, 4))
    advice = frx_graph.advise(nn.Linear(4, 3), (x,), train=True, observe=True, measure=False).advice
    assert advice.observed is not None
    assert upstream.weight.grad is None
    x.sum().backward()
    assert upstream.weight.grad is not None


def test_closed_over_tensors_are_put_back() -> None:
    cache = torch.zeros(3)

    def writes(x: Tensor) -> Tensor:
        return cache.add_(x) * 2

    capture_model(writes, (torch.ones(3),))
    assert torch.equal(cache, torch.zeros(3))


def test_tensors_without_strides_are_left_alone() -> None:
    sparse = torch.eye(3).to_sparse()
    on_meta = torch.empty(3, device="meta", requires_grad=True)
    with preserved_state([sparse, on_meta]):
        pass
    assert on_meta.grad is None
