"""A small image classifier written the way many are: channels-last logic expressed with permutes in a plain network.

`frx advise examples/convnet.py:build` finds its copies; nothing but torch is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ChannelsLastBlock(nn.Module):
    """A ConvNeXt-like block whose stream is NHWC: it permutes into the convolution and copies on the way back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand = nn.Linear(channels, 4 * channels)
        self.contract = nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """`x` is (batch, height, width, channels)."""
        y = self.depthwise(x.permute(0, 3, 1, 2).contiguous())
        y = self.norm(y.permute(0, 2, 3, 1).contiguous())
        output: Tensor = x + self.contract(functional.gelu(self.expand(y)))
        return output


class ShuffleBlock(nn.Module):
    """Grouped 1x1 convolutions with a channel shuffle between them."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.mix = nn.Conv2d(channels, channels, 1, groups=groups)
        self.spatial = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.project = nn.Conv2d(channels, channels, 1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        """`x` is (batch, channels, height, width)."""
        batch, channels, height, width = x.shape
        y = functional.relu(self.mix(x))
        y = y.view(batch, self.groups, channels // self.groups, height, width).transpose(1, 2)
        y = y.reshape(batch, channels, height, width)
        y = self.project(self.spatial(y))
        return functional.relu(x + y)


class ConvNet(nn.Module):
    """Stem, a stage of NHWC-written blocks, a stage of shuffle blocks, and a deep and narrow stage at the end."""

    def __init__(self, width: int = 64, classes: int = 100) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.ModuleList(ChannelsLastBlock(width) for _ in range(3))
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.shuffles = nn.Sequential(*(ShuffleBlock(2 * width, groups=4) for _ in range(3)))
        self.deep = nn.Sequential(
            nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
            nn.Conv2d(4 * width, 4 * width, 3, padding=1),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of `images`, (batch, 3, height, width)."""
        x = self.stem(images).permute(0, 2, 3, 1).contiguous()
        for block in self.blocks:
            x = block(x)
        x = self.shuffles(self.down(x.permute(0, 3, 1, 2)))
        logits: Tensor = self.classifier(self.deep(x).mean((2, 3)))
        return logits


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model in inference mode and a batch of four 128x128 images."""
    torch.manual_seed(0)
    return ConvNet().eval(), (torch.randn(4, 3, 128, 128),)
