from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frx_graph.passes import confidence
from frx_graph.passes.detectors.materialised_attention import DETECTOR
from frx_graph.records import Effort, Finding, Refusal, Risk, Severity

BATCH, HEADS, TOKENS, HEAD = 2, 4, 64, 16
QUERY = (BATCH, HEADS, TOKENS, HEAD)
SCORES_BYTES = BATCH * HEADS * TOKENS * TOKENS * 4


class Attention(nn.Module):
    """Written out: scale, softmax, product."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(HEAD)
        weights = scores.softmax(dim=-1)  # the softmax line
        return weights @ v


def softmax_line() -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if "# the softmax line" in line)


def qkv(tokens: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    shape = (BATCH, HEADS, tokens, HEAD)
    return torch.randn(shape), torch.randn(shape), torch.randn(shape)


def findings(outcomes: Any) -> list[Finding]:
    return [outcome for outcome in outcomes if isinstance(outcome, Finding)]


def test_written_out_attention_is_found_with_its_traffic(analyse: Any) -> None:
    outcomes = list(DETECTOR.detect(analyse(Attention(), *qkv(), step_bytes=8 * SCORES_BYTES)))
    (finding,) = outcomes
    assert isinstance(finding, Finding)
    # bmm, div and softmax each write the scores, and each is read once.
    assert (finding.count_per_step, finding.bytes_per_step) == (1, 6 * SCORES_BYTES)
    assert finding.nodes == ("bmm", "div", "_softmax", "bmm_1")
    assert finding.site.line == softmax_line()
    assert finding.site.file == __file__
    assert finding.site.function == "forward"
    assert finding.severity is Severity.HIGH
    assert finding.saving.predicted_pct_max == pytest.approx(75.0)
    assert (finding.effort, finding.risk) == (Effort.LOCAL, Risk.MEDIUM)
    assert "scaled_dot_product_attention(q, k, v)`" in finding.fix
    assert "64×64 (4 heads, batch 2)" in finding.evidence[0].text
    assert finding.copies == ()


def test_under_inductor_nothing_is_promised(analyse: Any) -> None:
    (finding,) = DETECTOR.detect(analyse(Attention(), *qkv(), inner="inductor"))
    assert finding.saving.predicted_pct_min == 0.0
    assert finding.confidence == confidence.ASSUMED
    assert any("fuse_attention" in evidence.text for evidence in finding.evidence)


def test_layers_share_one_finding(analyse: Any) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Attention(), Attention()])

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            for layer in self.layers:
                q = layer(q, k, v)
            return q

    (finding,) = DETECTOR.detect(analyse(Twice(), *qkv()))
    assert (finding.count_per_step, finding.bytes_per_step) == (2, 12 * SCORES_BYTES)
    assert finding.site.module_path == "model.layers.*"
    assert finding.modules == ("model.layers.0", "model.layers.1")


def test_the_backward_does_not_hide_it_nor_count_twice(analyse: Any) -> None:
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(HEADS * HEAD, 3 * HEADS * HEAD)

        def forward(self, x: Tensor) -> Tensor:
            batch, tokens, channels = x.shape
            q, k, v = self.qkv(x).view(batch, tokens, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
            weights = (q * HEAD**-0.5 @ k.transpose(-2, -1)).softmax(dim=-1)
            return (weights @ v).transpose(1, 2).reshape(batch, tokens, channels)

    (finding,) = DETECTOR.detect(analyse(Projected(), torch.randn(BATCH, TOKENS, HEADS * HEAD), train=True))
    assert (finding.count_per_step, finding.bytes_per_step) == (1, 4 * SCORES_BYTES)
    assert "scaled_dot_product_attention(q, k, v)`, and keep what follows the product on line" in finding.fix
    assert "; it scales by itself, so drop the scaling of q" in finding.fix
    assert any("kept for the backward" in evidence.text for evidence in finding.evidence)


class TransposedBefore(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = k.transpose(-2, -1).contiguous()  # the keys' line
        weights = (q @ k / math.sqrt(HEAD)).softmax(-1)
        return (weights @ v).transpose(1, 2).contiguous()  # the result's line


def test_the_fix_names_what_to_keep_and_what_to_leave_out(analyse: Any) -> None:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    keys = next(number for number, line in enumerate(lines, 1) if "# the keys' line" in line)
    result = next(number for number, line in enumerate(lines, 1) if "# the result's line" in line)
    (finding,) = DETECTOR.detect(analyse(TransposedBefore(), *qkv()))
    assert f"(lines {keys + 1} to {result})" in finding.fix
    assert f"with k as it is before the `transpose(-2, -1)` on line {keys}" in finding.fix
    assert f"keep what follows the product on line {result}" in finding.fix
    q, k, v = qkv()
    expected = TransposedBefore()(q, k, v)
    replaced = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous()
    torch.testing.assert_close(replaced, expected)


def test_keys_transposed_in_the_product_need_no_word(analyse: Any) -> None:
    (finding,) = DETECTOR.detect(analyse(Attention(), *qkv()))
    assert "with k as it is" not in finding.fix
    assert "keep what follows" not in finding.fix


class Masked(nn.Module):
    """Attention with `kind` of mask between product and softmax."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = torch.einsum("bhid,bhjd->bhij", q, k)
        if self.kind == "bias":
            scores = scores + mask
        elif self.kind == "fill":
            scores = scores.masked_fill(mask > 0, float("-inf"))
        elif self.kind == "where":
            scores = torch.where(mask > 0, scores, torch.finfo(scores.dtype).min)
        elif self.kind == "where not":
            scores = torch.where(mask > 0, float("-inf"), scores)
        elif self.kind == "where full":
            scores = torch.where(mask > 0, scores, torch.full((), -1e9))
        elif self.kind == "triangle":
            hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
            scores = scores.masked_fill_(hidden, float("-inf"))
        elif self.kind == "triangle or padding":
            hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden | (mask > 0), float("-inf"))
        elif self.kind == "scaled":
            scores = scores * 0.5
        return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("bias", "q, k, v, attn_mask=bias, scale=1.0"),
        ("fill", "q, k, v, attn_mask=~mask, scale=1.0"),
        ("where", "q, k, v, attn_mask=mask, scale=1.0"),
        ("where not", "q, k, v, attn_mask=~mask, scale=1.0"),
        ("where full", "q, k, v, attn_mask=mask, scale=1.0"),
        ("triangle", "q, k, v, is_causal=True, scale=1.0"),
        ("triangle or padding", "q, k, v, attn_mask=~mask, scale=1.0"),
        ("scaled", "q, k, v, scale=0.5"),
    ],
)
def test_the_fix_carries_the_mask_and_scale_that_were_found(analyse: Any, kind: str, arguments: str) -> None:
    (finding,) = DETECTOR.detect(analyse(Masked(kind), *qkv(), torch.randn(TOKENS, TOKENS)))
    assert f"scaled_dot_product_attention({arguments})" in finding.fix


def test_dropout_is_found_and_keeps_the_cpu_from_saving(analyse: Any) -> None:
    class Dropped(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.dropout((q @ k.transpose(-2, -1)).softmax(-1), 0.25, training=True) @ v

    (finding,) = DETECTOR.detect(analyse(Dropped(), *qkv()))
    assert "dropout_p=0.25 if self.training else 0.0" in finding.fix
    assert finding.bytes_per_step == 6 * SCORES_BYTES
    assert finding.saving.predicted_pct_min == 0.0
    assert "the CPU's fused kernel has no dropout" in finding.fix


def test_the_math_path_of_sdpa_is_found(analyse: Any) -> None:
    class Fallback(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    (finding,) = DETECTOR.detect(analyse(Fallback(), *qkv()))
    assert finding.title == "scaled_dot_product_attention stores its scores"
    assert finding.effort is Effort.ONE_LINE
    assert "no dropout" in finding.fix


class Fused(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class LearnedTable(nn.Module):
    """Soft class assignment, then class embeddings: product, softmax, product, and no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(HEAD, TOKENS)
        self.classes = nn.Parameter(torch.randn(TOKENS, HEAD))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.head(q).softmax(-1) @ self.classes


class OverQueries(nn.Module):
    """Slot attention's softmax over the queries: no fused kernel computes it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1)).softmax(-2) @ v


@pytest.mark.parametrize("model", [Fused(), LearnedTable(), OverQueries()], ids=lambda model: type(model).__name__)
def test_near_misses(analyse: Any, model: nn.Module) -> None:
    assert list(DETECTOR.detect(analyse(model, *qkv()))) == []


def test_few_tokens_move_less_than_their_operands(analyse: Any) -> None:
    # Three operators store N×N: 6 N² elements against 4 N d; with d = 16 the break-even lies at N = 32 / 3.
    assert findings(DETECTOR.detect(analyse(Attention(), *qkv(10)))) == []
    assert len(findings(DETECTOR.detect(analyse(Attention(), *qkv(11))))) == 1


class ReturnsWeights(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        return weights @ v, weights


class SoftCapped(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (50 * torch.tanh(q @ k.transpose(-2, -1) / 50)).softmax(-1) @ v


@pytest.mark.parametrize(("model", "reason"), [(ReturnsWeights(), "the program's output"), (SoftCapped(), "tanh")])
def test_pattern_unsupported_by_the_fused_kernel_is_refused_with_its_nodes(
    analyse: Any, model: nn.Module, reason: str
) -> None:
    (refusal,) = DETECTOR.detect(analyse(model, *qkv()))
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
    assert "_softmax" in refusal.nodes
    assert refusal.site is not None
    assert refusal.site.file == __file__


class Biased(nn.Module):
    """`change` stands between product and softmax."""

    def __init__(self, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
        return self.change(q @ k.transpose(-2, -1), b).softmax(-1) @ v


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s, b: (s + b) * 0.5, "a scale after the bias"),
        (lambda s, b: (s + b).masked_fill(b > 0, float("-inf")) * 0.5, "a scale after the bias"),
        (lambda s, b: (s + b) * 0.5 + b.T, "a scale after the bias"),
        (lambda s, b: s * 0.5 - b, "a subtracted or scaled bias"),
        (lambda s, b: torch.add(s, b, alpha=2), "a subtracted or scaled bias"),
        (lambda s, b: s + s, "a sum of the scores with themselves"),
        (lambda s, b: s.masked_fill(b > 0, 0.0), "a mask that fills in 0.0"),
        (lambda s, b: torch.where(b > 0, s, b), "a mask that fills in an unknown value"),
        (lambda s, b: s.masked_fill(b > 0, float("-inf")) * -1.0, "a negative scale after the mask"),
    ],
)
def test_a_bias_or_mask_that_sdpa_cannot_take_as_it_is_is_refused(
    analyse: Any, change: Callable[[Tensor, Tensor], Tensor], reason: str
) -> None:
    (refusal,) = DETECTOR.detect(analyse(Biased(change), *qkv(), torch.randn(TOKENS, TOKENS)))
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason


def test_one_bias_after_the_scale_is_advised(analyse: Any) -> None:
    (finding,) = DETECTOR.detect(analyse(Biased(lambda s, b: s * 0.5 + b), *qkv(), torch.randn(TOKENS, TOKENS)))
    assert "scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.5)" in finding.fix


def fused_mask(*biases: Tensor, hidden: Tensor | None = None) -> Tensor:
    """The one float mask that the fix describes."""
    total = torch.zeros(TOKENS, TOKENS)
    for bias in biases:
        total = total + bias
    return total if hidden is None else total.masked_fill(hidden, float("-inf"))


CAUSAL = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)


@pytest.mark.parametrize(
    ("change", "one_mask", "said"),
    [
        (
            lambda s, b: s + b + b.T,
            lambda b: fused_mask(b, b.T),
            "attn_mask=bias, scale=1.0)`; make the 2 biases that are added here one float attn_mask in the dtype of q",
        ),
        (
            lambda s, b: (s + b).masked_fill(torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1), float("-inf")),
            lambda b: fused_mask(b, hidden=CAUSAL),
            "attn_mask=bias, scale=1.0)`; make the bias that is added here one float attn_mask in the dtype of q, with "
            "-inf wherever a mask hides the score",
        ),
        (
            lambda s, b: s.masked_fill(b > 1, -1e9) + b,
            lambda b: fused_mask(b, hidden=b > 1),
            "with -inf wherever a mask hides the score",
        ),
        (
            lambda s, b: torch.where(b > -1, s.masked_fill(b > 1, float("-inf")), -1e9),
            lambda b: (b > -1) & ~(b > 1),
            "attn_mask=mask, scale=1.0)`; its one boolean mask is True where all 2 masks here let the score take part",
        ),
    ],
    ids=["two biases", "bias and causal mask", "mask and bias", "two masks"],
)
def test_biases_and_masks_go_into_one(
    analyse: Any, change: Callable[[Tensor, Tensor], Tensor], one_mask: Callable[[Tensor], Tensor], said: str
) -> None:
    q, k, v = qkv()
    bias = torch.randn(TOKENS, TOKENS)
    model = Biased(change)
    (finding,) = DETECTOR.detect(analyse(model, q, k, v, bias))
    assert isinstance(finding, Finding)
    assert said in finding.fix
    fused = F.scaled_dot_product_attention(q, k, v, attn_mask=one_mask(bias), scale=1.0)
    torch.testing.assert_close(fused, model(q, k, v, bias), rtol=1e-4, atol=1e-5)
