"""Convolutional networks of our own, written as people write them: each holds one habit that costs layout copies.

Sizes are such that an inference step of batch 1 takes a small CPU some 5 to 100 ms.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_entry import BATCH, CLASSES, Built, images, seeded


class ShuffleUnit(nn.Module):
    """A ShuffleNet unit (Zhang et al. 2017): grouped 1x1, channel shuffle, depthwise 3x3, grouped 1x1, residual."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.squeeze = nn.Conv2d(channels, channels // 2, 1, groups=groups, bias=False)
        self.squeeze_norm = nn.BatchNorm2d(channels // 2)
        self.depthwise = nn.Conv2d(channels // 2, channels // 2, 3, padding=1, groups=channels // 2, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(channels // 2)
        self.expand = nn.Conv2d(channels // 2, channels, 1, groups=groups, bias=False)
        self.expand_norm = nn.BatchNorm2d(channels)

    def shuffle(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        x = x.view(batch, self.groups, channels // self.groups, height, width)
        x = x.transpose(1, 2).contiguous()
        return x.view(batch, channels, height, width)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.squeeze_norm(self.squeeze(x)))
        y = self.shuffle(y)
        y = self.depthwise_norm(self.depthwise(y))
        y = self.expand_norm(self.expand(y))
        return functional.relu(x + y)


class ShuffleNet(nn.Module):
    """A stem and three stages of shuffle units with a classifier."""

    def __init__(self, width: int = 128, units: int = 3, groups: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.stages = nn.ModuleList(
            nn.ModuleDict(
                {
                    "down": nn.Conv2d(width << stage, width << (stage + 1), 3, stride=2, padding=1, bias=False),
                    "units": nn.Sequential(*(ShuffleUnit(width << (stage + 1), groups) for _ in range(units))),
                }
            )
            for stage in range(3)
        )
        self.classifier = nn.Linear(width << 3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.stem(x)), 2)
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleDict)
            x = stage["units"](functional.relu(stage["down"](x)))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits


def shufflenet(train: bool = False, batch: int = BATCH) -> Built:
    """Our own ShuffleNet: channel shuffles written with view, transpose and contiguous."""
    with seeded():
        return ShuffleNet().train(train), (images(batch, 112),), {}


class NhwcConv(nn.Module):
    """A convolution in a network whose tensors are (batch, height, width, channels): permuted in and out."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            inputs, outputs, side, stride=stride, padding=(side - stride) // 2 if side > stride else 0
        )
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()
        return functional.gelu(self.norm(y))


class NhwcNet(nn.Module):
    """Three stages of residual blocks on NHWC tensors, and a classifier."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256), blocks: int = 3) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for before, width in zip((3, *widths), widths, strict=False):
            step = 4 if before == 3 else 2
            stages.append(NhwcConv(before, width, step, step))
            stages.extend(NhwcConv(width, width, 3) for _ in range(blocks))
        self.stages = nn.ModuleList(stages)
        self.classifier = nn.Linear(widths[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            y = stage(x)
            x = x + y if y.shape == x.shape else y
        logits: Tensor = self.classifier(x.mean((1, 2)))
        return logits


def nhwc_written(train: bool = False, batch: int = BATCH) -> Built:
    """Our own NHWC network: permute in, permute and contiguous out around every convolution; layer norms, GELU."""
    with seeded():
        return NhwcNet().train(train), (torch.randn(batch, 224, 224, 3),), {}


def _convolutions(channels: int, count: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(count):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers)


def wide_7x7(train: bool = False, batch: int = BATCH) -> Built:
    """Six 3x3 convolutions of 512 channels on 7x7 feature maps: all weights, little image; for small batches."""
    with seeded():
        return _convolutions(512, 6).train(train), (images(batch, 7, 512),), {}


class Mixed(nn.Module):
    """Stages that want different layouts: wide and shallow first, narrow and deep last."""

    def __init__(self) -> None:
        super().__init__()
        self.shallow = _convolutions(64, 4)
        self.widen = nn.Conv2d(64, 512, 1)
        self.deep = _convolutions(512, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.deep(self.widen(functional.max_pool2d(self.shallow(x), 8)))
        return output


def mixed_64_512(train: bool = False, batch: int = BATCH) -> Built:
    """3x3 convolutions of 64 channels on 56x56 feature maps, then of 512 channels on 7x7 ones."""
    with seeded():
        return Mixed().train(train), (images(batch, 56, 64),), {}


class BoardNet(nn.Module):
    """A trunk of residual convolutions with a policy and a value head, as programs that play Go have (Silver et al.
    2017): each head is a 1x1 convolution, flattened into a linear layer."""

    def __init__(self, side: int, planes: int = 17, width: int = 128, blocks: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(planes, width, 3, padding=1)
        self.trunk = nn.ModuleList(_convolutions(width, 2) for _ in range(blocks))
        self.policy_conv = nn.Conv2d(width, 32, 1)
        self.policy = nn.Linear(32 * side * side, side * side + 1)
        self.value_conv = nn.Conv2d(width, 32, 1)
        self.value = nn.Sequential(nn.Linear(32 * side * side, 256), nn.ReLU(), nn.Linear(256, 1), nn.Tanh())

    def forward(self, board: Tensor) -> tuple[Tensor, Tensor]:
        x = functional.relu(self.stem(board))
        for block in self.trunk:
            x = x + block(x)
        policy = self.policy(functional.relu(self.policy_conv(x)).flatten(1))
        value = self.value(functional.relu(self.value_conv(x)).flatten(1))
        return policy, value


def conv_flatten_linear(train: bool = False, batch: int = BATCH) -> Built:
    """A network for a board of 19x19 fields with two heads: convolution, flatten, linear."""
    with seeded():
        return BoardNet(19).train(train), (images(batch, 19, 17),), {}
