"""Gradients without autograd's engine are those of autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from frx_graph.capture.absent_gpu import AbsentGpu, are_on_absent_gpu, capture_for
from frx_graph.capture.engineless_backward import differentiate, note_end


class Doubled(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2


class Branching(nn.Module):
    """Values that are read twice, an operator of several results, a view, and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(self.linear(x))
        left, right = y.chunk(2, dim=-1)
        z = Doubled.apply(torch.cat([right, left], -1)) + y
        return self.linear(z).t(), left.exp().sum()


@pytest.mark.parametrize(
    "model", [Branching(), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))], ids=["branching", "chain"]
)
def test_gradients_are_autograds(model: nn.Module) -> None:
    torch.manual_seed(0)
    model = model.double()
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    leaves = [x, *model.parameters()]

    def run() -> tuple[list[Tensor], list[Tensor]]:
        made = model(x)
        roots = list(made) if isinstance(made, tuple) else [made]
        return roots, [torch.full_like(root, 0.5) for root in roots]

    roots, given = run()
    expected = torch.autograd.grad(roots, leaves, given, allow_unused=True)
    found = differentiate(*run()[:1], list(map(note_end, leaves)), given)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            torch.testing.assert_close(one, other)


def test_the_gradient_of_what_something_else_has_made_ends_there() -> None:
    weight = torch.randn(4, requires_grad=True)
    given = (weight * 2).exp()
    root = (given * weight).sum()
    leaves, ones = [given, weight], [torch.ones_like(root)]
    expected = torch.autograd.grad([root], leaves, ones, retain_graph=True)
    found = differentiate([root], list(map(note_end, leaves)), ones)
    assert found[0] is not None
    torch.testing.assert_close(found[0], expected[0])
    # Autograd goes on through `given`; a graph's inputs have nothing in common.
    torch.testing.assert_close(found[1], given.detach())


class Twofold(torch.autograd.Function):
    """Two results; its backward takes both gradients for granted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2 + gradients[1] * 3


def test_gradients_of_unused_results_are_zeros_for_the_programs_own_functions() -> None:
    x = torch.randn(4, requires_grad=True)
    root = Twofold.apply(x)[0].sum()
    (found,) = differentiate([root], [note_end(x)], [torch.ones_like(root)])
    assert found is not None
    torch.testing.assert_close(found, torch.full_like(x, 2.0))


class Scaled(torch.autograd.Function):
    """Takes a number before its tensors, and a tensor that needs no gradient."""

    @staticmethod
    def forward(ctx: Any, factor: float, x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        ctx.factor = factor
        return x * factor + mask + y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, gradients[0] * ctx.factor, None, gradients[0]


def test_numbers_that_a_function_takes_have_no_gradient() -> None:
    x, y = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    root = Scaled.apply(3.0, x, torch.ones(4), y).sum()
    found = differentiate([root], [note_end(x), note_end(y)], [torch.ones_like(root)])
    assert found[0] is not None
    assert found[1] is not None
    torch.testing.assert_close(found[0], torch.full_like(x, 3.0))
    torch.testing.assert_close(found[1], torch.ones_like(y))


def test_a_write_into_an_input_does_not_hide_what_is_written() -> None:
    weight = torch.randn(4, requires_grad=True)
    given = torch.randn(4, requires_grad=True) * 1.0
    ends = [note_end(given), note_end(weight)]
    root = given.add_(weight * 2).sum()
    found = differentiate([root], ends, [torch.ones_like(root)])
    assert found[0] is not None
    assert found[1] is not None
    torch.testing.assert_close(found[0], torch.ones(4))
    torch.testing.assert_close(found[1], torch.full((4,), 2.0))


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch is built for processors only")
@pytest.mark.parametrize("seen", [False, True])
def test_a_gpu_is_absent_while_it_is_captured_for(monkeypatch: pytest.MonkeyPatch, seen: bool) -> None:
    with FakeTensorMode():
        here, there = torch.ones(1), torch.ones(1, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen)
    assert not are_on_absent_gpu([here, there])
    with capture_for(AbsentGpu()):
        assert are_on_absent_gpu([here, there])
        assert not are_on_absent_gpu([here])
