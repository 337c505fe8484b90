"""What is read off a written-out attention, field by field. What is said about it is `materialised_attention`'s."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frx_graph.passes.attention_pattern import Attention

QKV = tuple(torch.randn(2, 4, 16, 8) for _ in range(3))
MASK = torch.ones(16, 16, dtype=torch.bool).tril()
BIAS = torch.randn(16, 16)


class Attend(nn.Module):
    """softmax(f(Q K^T)) V."""

    def __init__(self, on_scores: Callable[..., Tensor]) -> None:
        super().__init__()
        self.on_scores = on_scores

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor) -> Tensor:
        return torch.softmax(self.on_scores(q @ k.transpose(-2, -1), *extra), -1) @ v


@pytest.fixture
def attention(analyse: Any) -> Any:
    def find(model: nn.Module, *args: Tensor, **options: Any) -> Attention:
        (found,) = analyse(model, *args, **options).attentions
        assert isinstance(found, Attention)
        return found

    return find


def test_products_operands_and_operators_between_are_found(attention: Any) -> None:
    found = attention(Attend(lambda s: s / math.sqrt(8)), *QKV)
    assert (found.first.operator, found.second.operator) == ("aten.bmm", "aten.bmm")
    assert (found.between[0], found.softmax in found.between) == (found.first, True)
    assert found.scores.shape == (2, 4, 16, 16)
    assert [value.shape[-2:] for value in (found.query, found.key, found.value)] == [(16, 8), (8, 16), (16, 8)]
    assert (found.biases, found.masks, found.dropout, found.unsupported) == ((), (), 0.0, ())


@pytest.mark.parametrize(
    ("on_scores", "scale"),
    [
        (lambda s: s, None),
        (lambda s: s / 4, 0.25),
        (lambda s: s * 0.5, 0.5),
        (lambda s: s.mul(0.5).div(2), 0.25),
        (lambda s: s + 3, None),
    ],
    ids=["none", "divided", "multiplied", "both", "a number added changes no softmax"],
)
def test_scales(attention: Any, on_scores: Any, scale: float | None) -> None:
    found = attention(Attend(on_scores), *QKV)
    assert (found.scale, found.scale_on_query, found.unsupported) == (scale, False, ())


def test_a_scale_on_the_query(attention: Any) -> None:
    class ScaledQuery(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.softmax((q * 0.25) @ k.transpose(-2, -1), -1) @ v

    found = attention(ScaledQuery(), *QKV)
    assert (found.scale, found.scale_on_query) == (0.25, True)


@pytest.mark.parametrize(
    ("on_scores", "keeps"),
    [
        (lambda s, mask: s.masked_fill(mask, float("-inf")), False),
        (lambda s, mask: torch.where(mask, s, float("-inf")), True),
        (lambda s, mask: torch.where(mask, float("-inf"), s), False),
        (lambda s, mask: s.masked_fill(mask, -1e9), False),
        (lambda s, mask: torch.where(mask, torch.full_like(s, -1e9), s), False),
        (lambda s, mask: torch.where(mask, s, torch.full_like(s, -1e9)), True),
    ],
    ids=[
        "masked_fill",
        "where keeps",
        "where hides",
        "a large number",
        "where hides by full_like",
        "where keeps, else full_like",
    ],
)
def test_masks(attention: Any, on_scores: Any, keeps: bool) -> None:
    found = attention(Attend(on_scores), *QKV, MASK)
    assert ([mask.keeps for mask in found.masks], found.biases, found.unsupported) == ([keeps], (), ())
    assert not found.causal


def test_a_bias(attention: Any) -> None:
    found = attention(Attend(lambda s, bias: s / 4 + bias), *QKV, BIAS)
    assert (found.scale, len(found.biases), found.masks, found.unsupported) == (0.25, 1, (), ())


@pytest.mark.parametrize(
    ("on_scores", "biases", "masks"),
    [
        (lambda s, b: s / 4 + b + b.abs(), 2, 0),
        (lambda s, b: (s / 4 + b).masked_fill(b > 1, float("-inf")), 1, 1),
        (lambda s, b: (s / 4).masked_fill(b > 1, float("-inf")) + b, 1, 1),
        (lambda s, b: (s / 4).masked_fill(MASK.logical_not(), -1e9).masked_fill(b > 1, float("-inf")), 0, 2),
    ],
    ids=["two biases", "bias, mask", "mask, bias", "two masks"],
)
def test_biases_and_masks_that_are_one_mask_together(attention: Any, on_scores: Any, biases: int, masks: int) -> None:
    found = attention(Attend(on_scores), *QKV, BIAS)
    assert (len(found.biases), len(found.masks), found.scale, found.unsupported) == (biases, masks, 0.25, ())


def test_causal_mask_with_a_bias_is_not_is_causal(attention: Any) -> None:
    def biased(scores: Tensor, bias: Tensor) -> Tensor:
        return (scores + bias).masked_fill(torch.ones(16, 16, dtype=torch.bool).triu(1), float("-inf"))

    assert not attention(Attend(biased), *QKV, BIAS).causal


def test_a_mask_from_a_triangle_is_causal(attention: Any) -> None:
    def causal(scores: Tensor) -> Tensor:
        return scores.masked_fill(torch.ones(16, 16, dtype=torch.bool).triu(1), float("-inf"))

    assert attention(Attend(causal), *QKV).causal


@pytest.mark.parametrize(
    ("on_scores", "what"),
    [
        (lambda s, b: (s + b) / 4, "a scale after the bias"),
        (lambda s, b: (s + b) / 4 + b, "a scale after the bias"),
        (lambda s, b: s - b, "a subtracted or scaled bias"),
        (lambda s, b: torch.where(b > 0, s, 0.0), "a mask that fills in 0.0"),
        (lambda s, b: s.tanh(), "tanh"),
    ],
)
def test_what_the_fused_operator_has_no_place_for_is_named(attention: Any, on_scores: Any, what: str) -> None:
    assert what in attention(Attend(on_scores), *QKV, BIAS).unsupported


def test_dropout_and_weights_that_others_use(attention: Any) -> None:
    class ReturnsWeights(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            weights = torch.softmax(q @ k.transpose(-2, -1), -1)
            return F.dropout(weights, 0.25, training=True) @ v, weights

    found = attention(ReturnsWeights(), *QKV)
    assert found.dropout == pytest.approx(0.25)
    assert found.weights_used_by


class OverQueries(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1), -2) @ v


class WithoutValues(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1), -1) + v.sum()


class LearnedTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 8))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q.flatten(0, 2) @ self.table.t(), -1) @ self.table


@pytest.mark.parametrize("model", [OverQueries(), WithoutValues(), LearnedTable()], ids=lambda m: type(m).__name__)
def test_near_misses(analyse: Any, model: nn.Module) -> None:
    assert analyse(model, *QKV).attentions == ()
