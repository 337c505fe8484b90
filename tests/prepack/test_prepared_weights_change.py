"""Weights that were stored anew are changed in every way that torch has: the program computes what it would have."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import frx_graph
from frx_graph.compiler import operator_times

IMAGE = torch.randn(2, 8, 6, 6)


class Tied(nn.Module):
    """Two of its three convolutions have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.third.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


def load(model: Tied) -> None:
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})


def load_assigned(model: Tied) -> None:
    other = {name: value.contiguous() * 0.5 for name, value in model.state_dict().items()}
    model.load_state_dict(other, assign=True)
    model.third.weight = model.second.weight


def swap_data(model: Tied) -> None:
    model.first.weight.data = model.first.weight.data.contiguous() * 2


def write(model: Tied) -> None:
    with torch.no_grad():
        model.second.weight.mul_(2)
        model.first.weight[0, 1] = 3.0


def learn(optimizer: Callable[..., torch.optim.Optimizer]) -> Callable[[Tied], None]:
    def steps(model: Tied) -> None:
        made = optimizer(model.parameters(), lr=1e-2)
        for _ in range(2):
            made.zero_grad()
            model(IMAGE).square().sum().backward()
            made.step()

    return steps


CHANGES = {
    "load_state_dict": load,
    "load_state_dict, assign": load_assigned,
    ".data": swap_data,
    "in place": write,
    "SGD": learn(torch.optim.SGD),
    "AdamW, fused": learn(lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, fused=True)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_computed_with(change: Callable[[Tied], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_times, "measure_bandwidth", lambda _facts: 1e10)
    monkeypatch.setattr(
        operator_times,
        "time_anchors",
        lambda subject, **_how: {anchor.op.node: {(0, 1, 2, 3): 2.0, (0, 2, 3, 1): 1.0} for anchor in subject.anchors},
    )
    model = Tied()
    alone = copy.deepcopy(model)
    assert set(frx_graph.prepare(model, (IMAGE,)).converted) == {"first.weight", "second.weight"}
    assert model.second.weight.is_contiguous(memory_format=torch.channels_last)
    compiled = torch.compile(model, backend="frx", options={"plan": "all", "inner": "eager"})
    with torch.no_grad():
        compiled(IMAGE)
    for changed in (model, alone):
        change(changed)
    assert model.third.weight is model.second.weight
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(IMAGE), alone(IMAGE), rtol=1e-4, atol=1e-4)
