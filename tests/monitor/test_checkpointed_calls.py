"""Calls of a watched program amid hooks on what autograd saves: a checkpoint makes each twice, by one program."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from watched_backend import Machine, Watch, taking

from frx_graph.monitor import checkpointed_calls


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("blocks", [1, 2, 4, 12])
def test_checkpointed_blocks_are_left_alone(blocks: int) -> None:
    def trained(backend: Any) -> tuple[Tensor, list[Tensor]]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(blocks)]
        compiled = [torch.compile(layer, backend=backend) for layer in layers]
        x = torch.randn(4, 8, requires_grad=True)
        y = x
        for layer in compiled:
            y = checkpoint(layer, y, use_reentrant=False)
        y.sum().backward()
        return x.grad, [parameter.grad for layer in layers for parameter in layer.parameters()]

    watch = Watch(taking(lambda step: 0.5), train=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, gradients = trained(watch)
    expected, theirs = trained("aot_eager")
    assert torch.equal(found, expected)
    assert all(map(torch.equal, gradients, theirs))
    assert watch.reasons == []


def more_saved(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
    """A program that saves more for its backward than the baseline's does."""
    return lambda *args: tuple(value.exp().log().exp().log() for value in right(*args))


@pytest.mark.parametrize("first", [0, 1, 2], ids=["first", "between", "last"])
def test_a_checkpoint_is_computed_twice_by_the_same_program(first: int) -> None:
    def nan_once_plain(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        made = more_saved(right, machine)
        return lambda *args: tuple(value * bad[0] for value in made(*args))

    bad = [1.0]
    watch = Watch(nan_once_plain, train=True)
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
    compiled = [torch.compile(layer, backend=watch) for layer in layers]

    def step(blocks: Any) -> list[Tensor]:
        layers.zero_grad()
        y = torch.ones(4, 8, requires_grad=True)
        for i, block in enumerate(blocks):
            bad[0] = math.nan if i == first else 1.0
            y = block(y) if i == first else checkpoint(block, y, use_reentrant=False)
        bad[0] = 1.0
        y.sum().backward()
        return [parameter.grad.clone() for parameter in layers.parameters()]

    expected = step(layers)
    for _ in range(3):
        for found, gradient in zip(step(compiled), expected, strict=True):
            torch.testing.assert_close(found, gradient)
    assert watch.reasons == ["its results are not finite where the baseline's are"]
    # The plan's are the first step's at most, and one more in which nothing is to be told of the first.
    assert watch.steps["planned"] <= 1 + 2 * 4
    assert watch.steps["baseline"] >= 5


def given_up_under_hooks() -> tuple[Watch, Any]:
    """A plan that is given up, and a forward under hooks from before."""
    gone = [False]
    watch = Watch(taking(lambda step: 0.5), train=True, is_withdrawn=lambda: gone[0])
    compiled = torch.compile(lambda x: (x**2).sum(), backend=watch)
    x = torch.ones(3, requires_grad=True)
    hooked(compiled, x)
    gone[0] = True
    compiled(x).backward()
    assert watch.steps == {"planned": 2, "baseline": 0}
    return watch, compiled


def hooked(compiled: Any, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return compiled(x)


def test_what_is_given_up_does_not_run_for_ever_where_no_backward_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointed_calls, "_FORWARDS_BEFORE_A_BACKWARD", 10)
    watch, compiled = given_up_under_hooks()
    for _ in range(15):
        hooked(compiled, torch.ones(3, requires_grad=True))
    assert watch.steps == {"planned": 2 + 10, "baseline": 5}


def test_call_without_gradients_awaits_no_backward() -> None:
    gone = [False]
    watch = Watch(taking(lambda step: 0.5), train=True, is_withdrawn=lambda: gone[0])
    compiled = torch.compile(lambda x: (x**2).sum(), backend=watch)
    hooked(compiled, torch.ones(3))
    gone[0] = True
    compiled(torch.ones(3))
    hooked(compiled, torch.ones(3))
    assert watch.steps == {"planned": 2, "baseline": 1}
