"""What is returned lies as in eager also where torch's fakes say that it lies otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAST = torch.channels_last


class Activated(nn.Module):
    """An activation of one channel before a convolution: which order it lies in, its fake says wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 1, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(F.hardsigmoid(x))


class Filled(nn.Module):
    """One channel behind a convolution, in a result that could be written into the convolution's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(6, 3, 2, padding=1, stride=3), nn.Conv2d(3, 1, 2, padding=1)
        self.to(memory_format=LAST)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x))
        return y.masked_fill(y > 0.3, 0.3)


class Viewed(nn.Module):
    """A view whose strides beside a size of 1 are not those of its fake, under sizes that may change."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, groups=3), nn.Conv2d(6, 1, 2, padding=1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.second(y.view_as(y + 1))


class Normed(nn.Module):
    """A batch norm of images that lie in both orders, of which its kernel makes channels-last and its fake does not;
    backwards it reads by the strides of its image what came plain (torch 2.15)."""

    def __init__(self, kernel_size: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3, track_running_stats=False)
        self.convolution = nn.Conv2d(3, 6, kernel_size, padding=kernel_size // 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(self.norm(x))


class Pixels(nn.Module):
    """A convolution of single pixels with gaps, whose result is plain, and whose fake is channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.convolution = nn.Linear(3, 6), nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(self.linear(x.flatten(1))[:, :1, None, None])


class Turned(nn.Module):
    """A batch of one that does not stand outermost: convolutions bring it there, and others leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.norm = nn.GroupNorm(1, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.norm(self.first(x + 1))
        return self.second(y).flip(3), y


class Rolled(nn.Module):
    """An operator whose result is plain, and whose fake is channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)
        self.to(memory_format=LAST)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.roll(self.convolution(x), 1, 1)
        return y + 1, y.clone(memory_format=LAST)


class Shuffled(nn.Module):
    """An operator whose result is channels-last, and whose fake is plain; views of it do not ask how it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 3, groups=3, padding=1, bias=False)
        self.to(memory_format=LAST)

    def forward(self, x: Tensor) -> Tensor:
        y = F.channel_shuffle(self.convolution(x), 2)
        y[..., 0] = 0.5
        return y


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("program", "shape", "dynamic"),
    [
        (Activated, (1, 6, 5), None),
        (Filled, (6, 1, 6), None),
        (Viewed, (3, 6, 6), True),
        (Rolled, (3, 8, 9), None),
        (Shuffled, (3, 6, 5), None),
        (Pixels, (3, 1, 1), None),
        (Turned, (3, 6, 5), None),
    ],
)
def test_strides_are_those_of_eager(
    rewrite,
    program: Callable[[], nn.Module],
    shape: tuple[int, ...],
    dynamic: bool | None,
    batch: int,
    train: bool,
) -> None:
    torch.manual_seed(0)
    image = torch.randn(batch, *shape).to(memory_format=LAST)
    found = rewrite(program().train(train), image, train=train, dynamic=dynamic)
    assert found.graphs


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kernel_size", [1, 3])
def test_operator_reading_unknown_strides_reads_the_same_values(rewrite, kernel_size: int, batch: int) -> None:
    image = torch.randn(batch, 5, 1, 3).permute(0, 3, 2, 1).requires_grad_()
    assert rewrite(Normed(kernel_size), image, train=True).graphs


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_batch_dimension_in_another_position(rewrite, order: tuple[int, int, int], train: bool) -> None:
    if train and order == (1, 2, 0) and torch.__version__ < "2.15":
        pytest.skip("torch's own graph computes wrong gradients there, under aot_eager, too (2.13)")
    torch.manual_seed(0)
    places = [order.index(dim) for dim in range(3)]
    image = torch.randn([(3, 6, 5)[dim] for dim in order]).permute(places)[..., None].permute(3, 0, 1, 2)
    assert rewrite(Turned(), image.requires_grad_(train), train=train).graphs


def test_reason_for_keeping_the_layout_is_reported(rewrite) -> None:
    (graph,) = rewrite(Viewed().eval(), torch.randn(1, 3, 6, 6).to(memory_format=LAST), dynamic=True).graphs
    assert any("strides were uncertain from the first" in refusal.reason for refusal in graph.done.refused)


@pytest.mark.parametrize("train", [False, True])
def test_weights_of_single_pixels_leave_no_doubt(rewrite, train: bool) -> None:
    model = nn.Sequential(nn.Conv2d(8, 6, 1), nn.ReLU(), nn.Conv2d(6, 4, 1)).to(memory_format=LAST).train(train)
    image = torch.randn(2, 8, 9, 10).to(memory_format=LAST).requires_grad_(train)
    for graph in rewrite(model, image, train=train).graphs:
        assert graph.done.applied
        assert not any("uncertain" in refusal.reason for refusal in graph.done.refused)
