"""What a program reaches: closures, partial and bound functions, objects, globals; and where the search ends."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frx_graph.capture.reachable_state import reachable

GLOBAL_NET = nn.Linear(2, 2)
UNNAMED_NET = nn.Linear(2, 2)


def _uses_a_global(x: Tensor) -> Tensor:
    return (lambda y: GLOBAL_NET(y))(x)


def _closes_over(net: nn.Module) -> Callable[..., Any]:
    def inner(x: Tensor) -> Any:
        return net(x)

    return lambda x: inner(x)


def _defaults(net: nn.Module) -> Callable[..., Any]:
    def call(x: Tensor, *, used: nn.Module = net) -> Any:
        return used(x)

    return call


class Trainer:
    def __init__(self, net: nn.Module) -> None:
        self.parts = {"net": [net]}

    def step(self, x: Tensor) -> Any:
        return self.parts["net"][0](x)

    def __call__(self, x: Tensor) -> Any:
        return self.step(x)


@pytest.mark.parametrize(
    "program",
    [
        lambda net: net,
        _closes_over,
        _defaults,
        lambda net: functools.partial(torch.func.functional_call, net),
        lambda net: functools.partial(lambda model, x: model(x), model=net),
        lambda net: net.forward,
        lambda net: Trainer(net),
        lambda net: Trainer(net).step,
        lambda net: lambda x: SimpleNamespace(trainer=Trainer(net)),
        lambda net: torch.no_grad()(_closes_over(net)),
    ],
)
def test_modules_are_found_with_all_that_lie_inside(program: Callable[[nn.Module], object]) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert {id(module) for module in reachable(program(net)).modules} >= {id(module) for module in net.modules()}


def test_of_the_globals_only_those_that_a_function_names_are_followed() -> None:
    modules = reachable(_uses_a_global).modules
    assert any(module is GLOBAL_NET for module in modules)
    assert not any(module is UNNAMED_NET for module in modules)
    assert reachable(json.dumps).modules == ()


def test_tensors_in_containers_and_closures_are_found_once() -> None:
    weight, given = torch.randn(2, 2), torch.randn(2)

    def product(x: Tensor) -> Tensor:
        return weight @ x

    tensors = reachable(product, [{"x": given}, given]).tensors
    assert sorted(map(id, tensors)) == sorted([id(weight), id(given)])


def test_what_refers_to_itself_ends() -> None:
    ring: list[object] = []
    ring.append(ring)
    assert reachable(ring).tensors == ()


def test_attributes_are_not_followed_for_ever() -> None:
    net = nn.Linear(2, 2)
    nested: object = net
    for _ in range(9):
        nested = SimpleNamespace(next=nested)
    assert reachable(nested).modules == ()


def test_what_modules_hold_besides_modules_is_found() -> None:
    net = nn.Linear(2, 2)
    net.kept = {"tensors": [torch.zeros(1)]}  # type: ignore[assignment]
    found = reachable(net)
    assert [id(tensor) for tensor in found.tensors] == [id(net.kept["tensors"][0])]
    assert [id(container) for container in found.containers] == [id(net.kept), id(net.kept["tensors"])]
    assert found.owners == (net,)


def test_what_a_compiler_keeps_is_not_the_programs() -> None:
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    compiled(torch.ones(1, 2))
    kinds = {type(owner).__module__.partition(".")[0] for owner in reachable(compiled.forward).owners}
    assert kinds <= {"torch"}
    assert all(isinstance(owner, nn.Module) for owner in reachable(compiled.forward).owners)
