"""Which masks `is_causal=True` stands for: the causal one however it is written, and no near miss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

N = 16
QKV = tuple(torch.randn(2, 4, N, 8) for _ in range(3))
PADDING = torch.rand(2, 1, 1, N) > 0.8
INF = float("inf")


def ones(n: int = N) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool)


class Attend(nn.Module):
    def __init__(self, on_scores: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.on_scores = on_scores

    def forward(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
        return self.on_scores(q @ k.transpose(-2, -1) / 8**0.5, padding).softmax(-1) @ v


@pytest.mark.parametrize(
    "on_scores",
    [
        lambda s, _: s.masked_fill(ones().triu(1), -INF),
        lambda s, _: s.masked_fill(ones().tril().logical_not(), -INF),
        lambda s, _: s.masked_fill(~ones().tril()[None, None], -INF),
        lambda s, _: s.masked_fill(torch.ones(N, N).tril() == 0, -INF),
        lambda s, _: s.masked_fill(ones(2 * N).triu(1)[:N, :N].expand(2, 1, N, N), -INF),
        lambda s, _: torch.where(ones().tril().view(1, 1, N, N), s, -INF),
        lambda s, _: s + torch.full((N, N), -INF).triu(1),
        lambda s, _: s + torch.zeros(N, N).masked_fill(ones().triu(1), -INF),
        lambda s, _: s + (1 - torch.ones(N, N).tril()) * -1e9,
    ],
)
def test_the_causal_mask(analyse: Any, on_scores: Any) -> None:
    model = Attend(on_scores)
    (found,) = analyse(model, *QKV, PADDING).attentions
    assert found.causal
    torch.testing.assert_close(F.scaled_dot_product_attention(*QKV, is_causal=True), model(*QKV, PADDING))


@pytest.mark.parametrize(
    "on_scores",
    [
        lambda s, p: s.masked_fill(ones().triu(1) | p, -INF),
        lambda s, p: s.masked_fill(ones().triu(1).logical_or(p), -INF),
        lambda s, _: s.masked_fill(ones().triu(1) | ones().tril(-4), -INF),
        lambda s, _: s.masked_fill(ones().triu(3), -INF),
        lambda s, _: s.masked_fill(ones().triu(), -1e9),
        lambda s, _: s.masked_fill(ones().tril(), -1e9),
        lambda s, _: torch.where(ones().tril(-1), s, -1e9),
        lambda s, _: s.masked_fill(ones().triu(1).T, -INF),
        lambda s, _: s.masked_fill(ones(2 * N).triu(1)[N:, :N], -INF),
        lambda s, _: s.masked_fill(ones(2 * N).triu(1)[4 : N + 4, :N], -INF),
        lambda s, p: s.masked_fill(ones().triu(1).logical_or_(p[0, 0]), -INF),
        lambda s, _: s + torch.full((N, N), -1.0).triu(1),
        lambda s, p: s + p.float() * torch.full((N, N), -1e9).triu(1),
        lambda s, _: s.masked_fill(ones().triu(1)[:1], -INF),
    ],
    ids=[
        "or padding",
        "logical_or padding",
        "window",
        "three ahead",
        "without itself",
        "the other side",
        "keeps too few",
        "transposed",
        "later rows",
        "shifted rows",
        "written to",
        "hides nothing",
        "times padding",
        "its first row for all",
    ],
)
def test_masks_that_are_another(analyse: Any, on_scores: Any) -> None:
    (found,) = analyse(Attend(on_scores), *QKV, PADDING).attentions
    assert not found.causal


def test_mask_with_more_keys_than_queries_is_not_causal(analyse: Any) -> None:
    def causal(scores: Tensor, _: Tensor) -> Tensor:
        return scores.masked_fill(torch.ones(N // 2, N, dtype=torch.bool).triu(1), -INF)

    q, k, v = QKV
    (found,) = analyse(Attend(causal), q[:, :, : N // 2], k, v, PADDING).attentions
    assert not found.causal
