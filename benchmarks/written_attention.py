"""Transformer blocks of our own, as people write them by hand: views, transposes and `contiguous()`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_entry import BATCH, Built, seeded

LENGTH, WIDTH, HEADS, BLOCKS = 256, 384, 6, 4


class HandWrittenAttention(nn.Module):
    """Self-attention as tutorials write it: view, transpose, contiguous, and softmax(QK^T) V with the scores stored."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2).contiguous()

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = torch.matmul(query, key.transpose(-2, -1)) / (query.shape[-1] ** 0.5)
        weights = torch.softmax(scores, dim=-1)
        return torch.matmul(weights, value)

    def forward(self, x: Tensor) -> Tensor:
        query = self.split(self.query(x))
        key = self.split(self.key(x))
        value = self.split(self.value(x))
        mixed = self.mix(query, key, value)
        mixed = mixed.transpose(1, 2).contiguous().view(x.shape)
        output: Tensor = self.out(mixed)
        return output


class ContiguousAttention(HandWrittenAttention):
    """The same with torch's fused attention, which needs none of the `contiguous()` around it."""

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value)


class AttentionBlock(nn.Module):
    """A pre-norm transformer block around an attention."""

    def __init__(self, attention: nn.Module, width: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = attention
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        output: Tensor = x + self.mlp(self.norm_mlp(x))
        return output


def _blocks(attention: type[HandWrittenAttention], train: bool, batch: int) -> Built:
    with seeded():
        model = nn.Sequential(*(AttentionBlock(attention(WIDTH, HEADS), WIDTH) for _ in range(BLOCKS))).train(train)
        return model, (torch.randn(batch, LENGTH, WIDTH),), {}


def attention_block(train: bool = False, batch: int = BATCH) -> Built:
    """Our own transformer blocks with hand-written softmax attention, sequences of 256."""
    return _blocks(HandWrittenAttention, train, batch)


def attention_contiguous(train: bool = False, batch: int = BATCH) -> Built:
    """The same blocks with fused attention and `contiguous()` after every transpose."""
    return _blocks(ContiguousAttention, train, batch)
