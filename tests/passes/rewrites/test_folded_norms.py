from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore:frx applies rewrites")
Freeze = Callable[..., object]
NORM = "aten._native_batch_norm_legit_no_training.default"
IMAGE = torch.randn(2, 8, 9, 9)


def norm(channels: int, **how: object) -> nn.Module:
    made = nn.BatchNorm2d(channels, **how)
    for tensor in (made.running_mean, made.running_var, *made.parameters()):
        nn.init.uniform_(tensor, 0.5, 1.5)
    return made


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_a_norm_behind_a_convolution_is_folded(freeze: Freeze, bias: bool, affine: bool) -> None:
    frozen = freeze(nn.Sequential(nn.Conv2d(8, 6, 3, bias=bias), norm(6, affine=affine)))
    frozen.run(IMAGE)
    assert NORM not in frozen.targets()
    assert ("folded_norms", 1) in frozen.applied()


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_weights_have_their_output_channels_elsewhere(freeze: Freeze, groups: int) -> None:
    frozen = freeze(nn.Sequential(nn.ConvTranspose2d(8, 6, 3, groups=groups), norm(6)))
    frozen.run(IMAGE)
    assert (NORM in frozen.targets()) == (groups > 1)


def test_a_grouped_convolution(freeze: Freeze) -> None:
    frozen = freeze(nn.Sequential(nn.Conv2d(8, 4, 3, groups=4), norm(4)))
    frozen.run(IMAGE)
    assert NORM not in frozen.targets()


def test_in_bf16(freeze: Freeze) -> None:
    frozen = freeze(nn.Sequential(nn.Conv2d(8, 6, 3), norm(6)).bfloat16(), tolerance=3e-2)
    frozen.run(IMAGE.bfloat16())
    assert NORM not in frozen.targets()


class ReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(8, 6, 3), norm(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x)
        return self.norm(y) + y


def test_a_convolution_that_others_read_keeps_its_weight(freeze: Freeze) -> None:
    frozen = freeze(ReadTwice())
    frozen.run(IMAGE)
    assert NORM in frozen.targets()


def test_batch_statistics_are_not_constants(freeze: Freeze) -> None:
    frozen = freeze(nn.Sequential(nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6, track_running_stats=False)))
    frozen.run(IMAGE)
    assert "folded_norms" not in dict(frozen.applied())


class Shared(nn.Module):
    """Two norms behind convolutions with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norms = nn.Conv2d(8, 8, 3, padding=1), nn.ModuleList([norm(8), norm(8)])

    def forward(self, x: Tensor) -> Tensor:
        for one in self.norms:
            x = one(self.convolution(x))
        return x


def test_one_weight_is_folded_for_each_norm(freeze: Freeze) -> None:
    frozen = freeze(Shared())
    frozen.run(IMAGE)
    assert ("folded_norms", 2) in frozen.applied()
