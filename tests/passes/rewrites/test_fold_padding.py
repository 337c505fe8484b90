"""Padding that convolutions add themselves."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PAD = "aten.constant_pad_nd.default"


class Padded(nn.Module):
    """Pads by hand, then convolves."""

    def __init__(self, pad: tuple[int, ...], value: float = 0.0, own: int = 0, groups: int = 1, rank: int = 2) -> None:
        super().__init__()
        make = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[rank]
        self.convolution = make(4, 8, 3, padding=own, groups=groups)
        self.pad, self.value = pad, value

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.convolution(F.pad(torch.sin(x), self.pad, value=self.value)))


def image(rank: int = 2) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 4, *(9,) * rank)


@pytest.mark.parametrize(
    ("program", "rank"),
    [
        (Padded((1, 1, 1, 1)), 2),
        (Padded((2, 2, 1, 1), own=1), 2),
        (Padded((1, 1)), 2),
        (Padded((0, 0, 3, 3), groups=2), 2),
        (Padded((1, 1, 0, 0, 0, 0)), 2),
        (Padded((2, 2), rank=1), 1),
        (Padded((1, 1, 2, 2, 3, 3), rank=3), 3),
    ],
)
def test_symmetric_zeros_are_folded(rewrite, program: Padded, rank: int) -> None:
    (graph,) = rewrite(program, image(rank)).graphs
    assert PAD in graph.before_targets()
    assert PAD not in graph.targets()


def test_an_image_in_channels_last_stays_so(rewrite) -> None:
    (graph,) = rewrite(Padded((1, 1, 1, 1)), image().contiguous(memory_format=torch.channels_last)).graphs
    assert PAD not in graph.targets()


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (Padded((0, 1, 0, 1)), "weight is not a constant"),
        (Padded((1, 1, 1, 1), value=1.0), "more than add zeros"),
        (Padded((-1, -1, 0, 0)), "more than add zeros"),
        (Padded((0, 0, 0, 0, 0, 0, 1, 1)), "more than add zeros"),
    ],
)
def test_other_padding_stays(rewrite, program: Padded, why: str) -> None:
    (graph,) = rewrite(program, image()).graphs
    assert PAD in graph.targets()
    assert [why in refusal.reason for refusal in graph.done.refused if refusal.subject == "fold_padding"] == [True]


def test_an_image_that_others_read_stays(rewrite) -> None:
    weight = torch.randn(8, 4, 3, 3)

    def reads_twice(x: Tensor) -> Tensor:
        padded = F.pad(x, (1, 1, 1, 1))
        return F.conv2d(padded, weight).sum() + padded.sum()

    def returns(x: Tensor) -> tuple[Tensor, Tensor]:
        padded = F.pad(x, (1, 1, 1, 1))
        return F.conv2d(padded, weight), padded

    def transposes(x: Tensor) -> Tensor:
        return F.conv_transpose2d(F.pad(x, (1, 1, 1, 1)), torch.ones(4, 8, 3, 3))

    def pads_the_weight(x: Tensor) -> Tensor:
        return F.conv2d(x, F.pad(weight, (1, 1, 1, 1)))

    for program in (reads_twice, returns, transposes, pads_the_weight):
        (graph,) = rewrite(program, image()).graphs
        assert PAD in graph.targets()


def test_two_convolutions_of_one_padded_image(rewrite) -> None:
    first, second = torch.randn(8, 4, 3, 3), torch.randn(4, 4, 1, 1)

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        padded = F.pad(x, (1, 1, 1, 1))
        return F.conv2d(padded, first), F.conv2d(padded, second, stride=2)

    (graph,) = rewrite(program, image()).graphs
    assert PAD not in graph.targets()


def test_in_training_the_image_is_saved(rewrite) -> None:
    found = rewrite(Padded((1, 1, 1, 1)), image().requires_grad_(), train=True)
    assert all(graph.before_targets().count(PAD) == graph.targets().count(PAD) for graph in found.graphs)


def test_sizes_that_change(rewrite) -> None:
    (graph,) = rewrite(Padded((1, 1, 1, 1)), image(), dynamic=True).graphs
    assert PAD not in graph.targets()


ONE_SIDED = [
    # Pads, channels, output channels, kernel, stride, own padding, dilation, groups.
    ((0, 1, 0, 1), 4, 4, 3, 2, 0, 1, 4),
    ((1, 0, 2, 1), 4, 4, 3, 1, 0, 1, 4),
    ((0, 1, 1, 1), 4, 8, 1, 2, 0, 1, 4),
    ((0, 2, 2, 0), 4, 4, 3, 1, 1, 2, 4),
    ((0, 1), 2, 2, 2, 1, 0, 1, 1),
]


@pytest.mark.filterwarnings("ignore:frx applies rewrites")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("pads", "into", "out", "kernel", "stride", "own", "dilation", "groups"), ONE_SIDED)
def test_a_constant_kernel_is_shifted(
    freeze, bias: bool, pads: tuple[int, ...], into: int, out: int, kernel: int, stride: int, own: int, dilation: int,
    groups: int,
) -> None:  # fmt: skip
    convolution = nn.Conv2d(into, out, kernel, stride, own, dilation, groups, bias)
    frozen = freeze(nn.Sequential(nn.ZeroPad2d((*pads, 0, 0)[:4]), convolution, nn.ReLU()))
    frozen.run(torch.randn(2, into, 11, 14))
    assert ("fold_padding", 1) in frozen.applied()
    assert PAD not in frozen.targets()


@pytest.mark.filterwarnings("ignore:frx applies rewrites")
def test_a_norm_is_folded_first(freeze) -> None:
    norm = nn.BatchNorm2d(8)
    norm.running_mean, norm.running_var = torch.rand(8), torch.rand(8) + 1
    frozen = freeze(nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(8, 8, 3, 2, groups=8), norm, nn.ReLU6()))
    frozen.run(torch.randn(2, 8, 12, 12))
    assert [name for name, _ in frozen.applied()][:2] == ["folded_norms", "fold_padding"]
    assert PAD not in frozen.targets()


@pytest.mark.filterwarnings("ignore:frx applies rewrites")
@pytest.mark.parametrize(
    ("convolution", "pads"),
    [
        # 16 channels of one group: 7 products with zeros for each of them.
        (nn.Conv2d(16, 16, 3, stride=1), (0, 1, 0, 1)),
        # The kernel's elements are two apart.
        (nn.Conv2d(4, 4, 3, dilation=2, groups=4), (0, 1, 0, 1)),
        (nn.ConvTranspose2d(4, 4, 3, groups=4), (0, 1, 0, 1)),
    ],
)
def test_a_kernel_that_cannot_be_shifted_stays(freeze, convolution: nn.Module, pads: tuple[int, ...]) -> None:
    frozen = freeze(nn.Sequential(nn.ZeroPad2d(pads), convolution))
    frozen.run(torch.randn(2, convolution.in_channels, 12, 12))
    assert PAD in frozen.targets()


def test_weights_that_may_change_are_not_shifted(rewrite) -> None:
    depthwise = Padded((0, 1, 0, 1), groups=4)
    (graph,) = rewrite(depthwise, image()).graphs
    assert PAD in graph.targets()
    assert ["not a constant" in one.reason for one in graph.done.refused if one.subject == "fold_padding"] == [True]


class Shared(nn.Module):
    """Several depthwise convolutions of one padded image."""

    def __init__(self, *dilations: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, dilation=one, groups=4) for one in dilations)

    def forward(self, x: Tensor) -> list[Tensor]:
        padded = F.pad(x, (0, 2, 0, 2))
        return [layer(padded) for layer in self.layers]


@pytest.mark.filterwarnings("ignore:frx applies rewrites")
@pytest.mark.parametrize(("dilations", "folds"), [((2,), True), ((2, 2), True), ((2, 2, 2), False), ((2, 1), False)])
def test_one_copy_pays_for_the_zeros_of_all_its_readers(freeze, dilations: tuple[int, ...], folds: bool) -> None:
    frozen = freeze(Shared(*dilations))
    frozen.run(torch.randn(1, 4, 12, 12))
    assert ("fold_padding" in dict(frozen.applied())) == folds


@pytest.mark.filterwarnings("ignore:frx applies rewrites")
@pytest.mark.parametrize(
    ("pad", "layer", "shape"),
    [
        (nn.ConstantPad1d((0, 1), 0.0), nn.Conv1d(4, 4, 3, groups=4), (2, 4, 9)),
        (nn.ConstantPad3d((0, 1, 0, 0, 1, 0), 0.0), nn.Conv3d(4, 4, 2, groups=4), (1, 4, 5, 6, 7)),
    ],
)
def test_other_ranks_are_shifted_too(freeze, pad: nn.Module, layer: nn.Module, shape: tuple[int, ...]) -> None:
    frozen = freeze(nn.Sequential(pad, layer))
    frozen.run(torch.randn(shape))
    assert PAD not in frozen.targets()


@pytest.mark.filterwarnings("ignore:frx applies rewrites")
def test_an_image_without_pixels_is_refused(freeze) -> None:
    frozen = freeze(nn.Sequential(nn.ZeroPad2d(2), nn.Conv2d(4, 4, 3, groups=4)))
    frozen.run(torch.randn(2, 4, 0, 5))
    assert frozen.reasons("fold_padding") == ["the image has no pixels, which a convolution does not take"]
