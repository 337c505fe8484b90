"""A small vision transformer that copies its heads before every attention, as much published code does.

`frx advise examples/attention.py:build` finds the copies; nothing but torch is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Fused QKV projection; queries, keys and values are each made contiguous before SDPA, which takes views."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`x` is (batch, tokens, width)."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        mixed = functional.scaled_dot_product_attention(query.contiguous(), key.contiguous(), value.contiguous())
        output: Tensor = self.out(mixed.transpose(1, 2).contiguous().view(batch, tokens, width))
        return output


class AttentionPool(nn.Module):
    """One learned query reads all tokens: softmax written out, with the scores stored."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(torch.randn(1, heads, 1, width // heads) * 0.02)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) to (batch, heads, tokens, width / heads), copied."""
        batch, tokens, width = x.shape
        return x.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """One vector of `width` for each of the batch."""
        key, value = self.split(self.key(x)), self.split(self.value(x))
        scores = self.query @ key.transpose(-2, -1) / key.shape[-1] ** 0.5
        output: Tensor = (scores.softmax(-1) @ value).flatten(1)
        return output


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """`x` is (batch, tokens, width)."""
        x = x + self.attention(self.norm_attention(x))
        output: Tensor = x + self.mlp(self.norm_mlp(x))
        return output


class VisionTransformer(nn.Module):
    """Patches, layers in a loop, attention pooling, logits."""

    def __init__(self, width: int = 256, heads: int = 8, depth: int = 6, classes: int = 100) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.pool = AttentionPool(width, heads)
        self.classifier = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of `images`, (batch, 3, height, width)."""
        x = self.patches(images).flatten(2).transpose(1, 2).contiguous()
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.classifier(self.pool(x))
        return logits


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model in inference mode and a batch of four 128x128 images."""
    torch.manual_seed(0)
    return VisionTransformer().eval(), (torch.randn(4, 3, 128, 128),)
