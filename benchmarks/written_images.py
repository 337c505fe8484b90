"""More convolutional networks of our own: a classic U-Net, a custom operator between convolutions, alternating strides.

Importing this module registers the operator `frx_benchmarks::soft_threshold`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_entry import BATCH, CLASSES, Built, images, seeded

THRESHOLD = 0.05


def _double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """The U-Net of Ronneberger et al. 2015 with padding and batch norms: pooling down, transposed convolutions up, the
    skip connections concatenated."""

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256, 512), classes: int = 2) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            _double_convolution(inputs, outputs) for inputs, outputs in zip((3, *widths), widths, strict=False)
        )
        upwards = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(deep, flat, 2, stride=2) for deep, flat in upwards)
        self.join = nn.ModuleList(_double_convolution(2 * flat, flat) for _, flat in upwards)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            skipped.append(x)
        skipped.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat((skipped.pop(), up(x)), dim=1))
        classes: Tensor = self.head(x)
        return classes


def unet_plain(train: bool = False, batch: int = BATCH) -> Built:
    """Our own classic U-Net, 7.8 M parameters, images of 128x128."""
    with seeded():
        return UNet().train(train), (images(batch, 128),), {}


class SmallNet(nn.Module):
    """Convolutions with batch norms in two stages, and a classifier."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.first = _double_convolution(width, width)
        self.second = _double_convolution(width, 2 * width)
        self.classifier = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(functional.max_pool2d(functional.relu(self.stem(x)), 2))
        x = self.second(functional.max_pool2d(x, 2))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits


def alternating_strides(train: bool = False, batch: int = BATCH) -> Built:
    """A small classifier in a loop: its images come in turn plain and in channels-last."""
    with seeded():
        return SmallNet().train(train), (images(batch),), {}


@torch.library.custom_op("frx_benchmarks::soft_threshold", mutates_args=())
def soft_threshold(x: Tensor, threshold: float) -> Tensor:
    """x moved towards zero by `threshold`, elementwise: opaque to compilers, as an operator of one's own is."""
    return torch.sign(x) * torch.relu(x.abs() - threshold)


@soft_threshold.register_fake
def _soft_threshold_fake(x: Tensor, threshold: float) -> Tensor:  # noqa: ARG001 - torch gives what the operator takes
    return torch.empty_like(x)


def _keep_input(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:  # noqa: ARG001 - torch's signature
    ctx.save_for_backward(inputs[0])
    ctx.threshold = inputs[1]


def _soft_threshold_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return gradient * (x.abs() > ctx.threshold), None


soft_threshold.register_autograd(_soft_threshold_backward, setup_context=_keep_input)


class CustomBetween(nn.Module):
    """Convolutions with the custom operator behind each of them."""

    def __init__(self, width: int = 128, count: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for convolution in self.convolutions:
            x = soft_threshold(convolution(x), THRESHOLD)
        return x


def custom_between(train: bool = False, batch: int = BATCH) -> Built:
    """Ten convolutions of 128 channels on 28x28 feature maps with a custom operator behind each of them."""
    with seeded():
        return CustomBetween().train(train), (images(batch, 112),), {}


class StrideFollowers(nn.Module):
    """Channels-last convolutions with operators between them whose kernels keep the layout though fakes predict another
    one: a roll, a channel shuffle, `copysign` and `lerp` with a number for each channel, a reflection pad."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.padded = nn.Conv2d(width, width, 3)
        self.signs = nn.Parameter(torch.randn(width, 1, 1))
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        one, two, three, four = self.layers
        x = torch.roll(functional.relu(self.stem(x)), (1, 1), (2, 3))
        x = functional.channel_shuffle(one(x), 4)
        x = torch.copysign(two(x), self.signs)
        x = torch.lerp(x, three(x), self.signs.sigmoid())
        x = self.padded(functional.pad(four(x), (1, 1, 1, 1), mode="reflect"))
        classes: Tensor = self.classifier(x.mean((2, 3)))
        return classes


def stride_followers(train: bool = False, batch: int = BATCH) -> Built:
    """Our own channels-last network of operators whose fakes predict other strides, images of 64x64."""
    with seeded():
        model = StrideFollowers().to(memory_format=torch.channels_last)
        return model.train(train), (images(batch, 64).contiguous(memory_format=torch.channels_last),), {}
