"""Eight small programs: trials have to conclude on them, too.

frx trial benchmarks/small_programs.py:plain_stack
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

SmallProgram: TypeAlias = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]


class _Residual(nn.Module):
    """A branch that is added to its input."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.branch(x)
        return out


def plain_stack() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Six convolutions of 64 channels."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1)]
    for _ in range(5):
        layers += [nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)]
    return nn.Sequential(*layers).eval(), (torch.randn(2, 3, 56, 56),)


def separable() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Depthwise and pointwise convolutions, with batch norms."""
    torch.manual_seed(0)

    def block() -> nn.Module:
        depthwise = nn.Conv2d(96, 96, 3, padding=1, groups=96, bias=False)
        return nn.Sequential(depthwise, nn.BatchNorm2d(96), nn.Hardswish(), nn.Conv2d(96, 96, 1), nn.BatchNorm2d(96))

    return nn.Sequential(*(_Residual(block()) for _ in range(6))).eval(), (torch.randn(2, 96, 56, 56),)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(256, 768)
        self.out = nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.project(x).view(batch, length, 3, 8, 32).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q.contiguous(), k.contiguous(), v.contiguous())
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, 256))
        return out


def attention_copies() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Attention whose queries, keys and values are copied."""
    torch.manual_seed(0)
    return nn.Sequential(*(_Residual(_Attention()) for _ in range(4))).eval(), (torch.randn(4, 196, 256),)


class _Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.channels = nn.Linear(196, 196), nn.Linear(256, 256)
        self.norm = nn.LayerNorm(256)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + nn.functional.gelu(self.channels(self.norm(x)))
        return out


def mixer() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Linears along tokens and along channels in turn."""
    torch.manual_seed(0)
    return nn.Sequential(*(_Mixer() for _ in range(4))).eval(), (torch.randn(4, 196, 256),)


def decoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Upsampling and convolutions, from 14 to 112 pixels."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for channels in (128, 64, 32):
        layers += [nn.Upsample(scale_factor=2), nn.Conv2d(channels, channels // 2, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers).eval(), (torch.randn(2, 128, 14, 14),)


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.paths = nn.ModuleList(nn.Conv2d(96, 32, size, padding=size // 2) for size in (1, 3, 5))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(torch.cat([path(x) for path in self.paths], 1))


def inception() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Convolutions of three sizes, side by side, whose results are concatenated."""
    torch.manual_seed(0)
    return nn.Sequential(*(_Branches() for _ in range(4))).eval(), (torch.randn(2, 96, 28, 28),)


class _NormalizedChannels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(96, 96, 7, padding=3, groups=96)
        self.norm, self.widen, self.narrow = nn.LayerNorm(96), nn.Linear(96, 384), nn.Linear(384, 96)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(nn.functional.gelu(self.widen(y))).permute(0, 3, 1, 2)
        out: Tensor = x + y.contiguous()
        return out


def normalized_channels() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Layer norms over channels between depthwise convolutions."""
    torch.manual_seed(0)
    return nn.Sequential(*(_NormalizedChannels() for _ in range(4))).eval(), (torch.randn(2, 96, 28, 28),)


def volumes() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Convolutions of volumes."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv3d(1, 16, 3, padding=1)]
    for _ in range(3):
        layers += [nn.ReLU(), nn.Conv3d(16, 16, 3, padding=1)]
    return nn.Sequential(*layers).eval(), (torch.randn(1, 1, 24, 24, 24),)


SMALL_PROGRAMS: tuple[SmallProgram, ...] = (
    plain_stack,
    separable,
    attention_copies,
    mixer,
    decoder,
    inception,
    normalized_channels,
    volumes,
)
