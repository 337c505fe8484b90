"""Copies that Inductor leaves: predicted from the graph, and held against the kernels that it generates."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frx_graph
from frx_graph.records import Copy, OperandRole


class Between(nn.Module):
    """From one library call to another: the copy has to be made."""

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        heads = torch.mm(x, w).view(16, 4, 32).transpose(0, 1).contiguous()
        return torch.bmm(heads, heads.transpose(1, 2))


class Computed(nn.Module):
    """The source is computed by a loop, which can store it in the wanted order."""

    def forward(self, x: Tensor) -> Tensor:
        heads = (x * 2).view(16, 4, 32).transpose(0, 1).contiguous()
        return torch.bmm(heads, heads.transpose(1, 2))


class ReadByLoops(nn.Module):
    """The only reader is a loop, which can load in the order that is there."""

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return F.relu(torch.mm(x, w).t().contiguous())


class WritesWhole(nn.Module):
    """The caller gets memory that is written in another order."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.empty(64, 32).copy_(x.t())


class WritesArgument(nn.Module):
    """The caller's own memory is written."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        y.copy_(x.t())
        return x + 1


class WritesRows(nn.Module):
    """One loop makes the buffer with what is written into it."""

    def forward(self, x: Tensor) -> Tensor:
        result = torch.empty(64, 32)
        result[:16] = x.t()[:16]
        return result


def _predicted(model: nn.Module, *args: Tensor, inner: str) -> tuple[Copy, ...]:
    torch._dynamo.reset()
    with torch.no_grad():
        return frx_graph.advise(model.eval(), args, inner=inner).advice.copies


def _bytes(copies: tuple[Copy, ...]) -> int:
    return sum(copy.bytes for copy in copies)


@pytest.mark.parametrize(
    ("model", "args", "left"),
    [
        (Between(), (torch.randn(16, 24), torch.randn(24, 128)), 2 * 16 * 128 * 4),
        (Computed(), (torch.randn(16, 128),), 0),
        (ReadByLoops(), (torch.randn(16, 24), torch.randn(24, 128)), 0),
        (WritesWhole(), (torch.randn(32, 64),), 2 * 64 * 32 * 4),
        (WritesArgument(), (torch.randn(32, 64), torch.randn(64, 32)), 2 * 64 * 32 * 4),
        (WritesRows(), (torch.randn(32, 64),), 0),
    ],
)
def test_what_inductor_leaves_of_an_explicit_copy(model: nn.Module, args: tuple[Tensor, ...], left: int) -> None:
    assert _bytes(_predicted(model, *args, inner="eager")) > 0
    assert _bytes(_predicted(model, *args, inner="inductor")) == left


def test_plain_weights_and_inputs_are_converted_where_inductor_forces_channels_last() -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("without oneDNN Inductor forces nothing on the CPU")
    net, x = nn.Conv2d(16, 32, 3), torch.randn(1, 16, 20, 20)
    added = [c for c in _predicted(net, x, inner="inductor") if "channels-last" in c.cause]
    assert {c.role: c.bytes for c in added} == {
        OperandRole.WEIGHT: 2 * 32 * 16 * 9 * 4,
        OperandRole.INPUT: 2 * 16 * 20 * 20 * 4,
    }
    ready = nn.Conv2d(16, 32, 3).to(memory_format=torch.channels_last)
    given = x.to(memory_format=torch.channels_last)
    assert not [c for c in _predicted(ready, given, inner="inductor") if "channels-last" in c.cause]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("model", "args"),
    [
        (Between(), (torch.randn(16, 24), torch.randn(24, 128))),
        (Computed(), (torch.randn(16, 128),)),
        (ReadByLoops(), (torch.randn(16, 24), torch.randn(24, 128))),
        (
            nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()),
            (torch.randn(1, 16, 20, 20),),
        ),
    ],
)
def test_the_prediction_is_what_the_generated_kernels_do(model: nn.Module, args: tuple[Tensor, ...]) -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        advice = frx_graph.advise(model.eval(), args, inner="inductor", observe=True).advice
    assert advice.observed is not None
    assert _bytes(advice.copies) == _bytes(advice.observed)
