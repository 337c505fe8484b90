"""Written attentions that become one call, those that must not, and that nobody can tell the difference."""

from __future__ import annotations

import copy
import itertools
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters, same
from torch.utils import _pytree as pytree
from written_attention import attention_block

from frx_graph import backend
from frx_graph.compiler import pre_autograd
from frx_graph.passes.rewrites.attention_from_views import NAME
from frx_graph.records import Refusal

pytestmark = [
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
    pytest.mark.usefixtures("nothing_compiled"),
]

HEADS = (2, 4, 16, 8)
QKV = tuple(torch.randn(HEADS, generator=torch.Generator().manual_seed(i)) for i in range(3))
KEEP = torch.ones(16, 16, dtype=torch.bool).tril()
LEAST = torch.finfo(torch.float32).min


class Attend(nn.Module):
    """softmax(f(Q K^T)) V on projected heads."""

    def __init__(self, on_scores: Callable[..., Tensor], on_weights: Callable[[Tensor], Tensor] = lambda w: w) -> None:
        super().__init__()
        self.on_scores = on_scores
        self.on_weights = on_weights
        torch.manual_seed(0)
        self.project = nn.Linear(8, 8)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor) -> Tensor:
        q, k, v = self.project(q), self.project(k), self.project(v)
        weights = torch.softmax(self.on_scores(q @ k.transpose(-2, -1), *extra), -1)
        return self.on_weights(weights) @ v


@dataclass
class Outcome:
    """How many attentions became one call, and what was said of the others."""

    applied: int
    refused: list[Refusal]
    outputs: list[Tensor]


def run(
    program: Callable[..., Any],
    *args: Any,
    train: bool = False,
    inner: str = "eager",
    plan: str = "all",
    dynamic: bool | None = None,
) -> Outcome:
    """Runs `program` with a plan and without, and checks that nobody can tell, by torch's own oracle."""
    torch._dynamo.reset()
    backend.clear()
    compiled = torch.compile(program, backend="frx", options={"plan": plan, "inner": inner}, dynamic=dynamic)
    double = copy.deepcopy(program).double() if isinstance(program, nn.Module) else program
    outputs, gradients = _run(compiled, program, args, train)
    expected, expected_gradients = _run(program, program, args, train)
    wide = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
    exact, exact_gradients = _run(double, double, wide, train)
    for ours, own, true in zip(
        [*outputs, *gradients], [*expected, *expected_gradients], [*exact, *exact_gradients], strict=True
    ):
        assert same(own, ours, true, tol=1e-4, equal_nan=True)
        assert ours.stride() == own.stride()
        assert ours.isnan().equal(own.isnan())
    done = backend.rewritten()
    return Outcome(
        sum(candidate.rewrite == NAME for one in done for candidate in one.applied),
        [refusal for one in done for refusal in one.refused if "attention" in refusal.subject],
        outputs,
    )


def _run(program: Callable[..., Any], module: Any, args: Any, train: bool) -> tuple[list[Tensor], list[Tensor]]:
    mine = [
        a.detach().clone().requires_grad_(train and a.is_floating_point()) if isinstance(a, Tensor) else a for a in args
    ]
    with torch.set_grad_enabled(train):
        outputs = [t for t in pytree.tree_leaves(program(*mine)) if isinstance(t, Tensor)]
        if not train:
            return outputs, []
        leaves = [a for a in mine if isinstance(a, Tensor) and a.requires_grad]
        leaves += list(module.parameters()) if isinstance(module, nn.Module) else []
        loss = sum((t.square() * torch.arange(t.shape[-1], dtype=t.dtype)).mean() for t in outputs if t.requires_grad)
        return outputs, [g for g in torch.autograd.grad(loss, leaves, allow_unused=True) if g is not None]


def causal(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones(16, 16, dtype=torch.bool).triu(1), float("-inf"))


FIRES = {
    "no scale": Attend(lambda s: s),
    "divided": Attend(lambda s: s / math.sqrt(8)),
    "multiplied": Attend(lambda s: 0.3 * s),
    "scaled twice, in place": Attend(lambda s: (s * 0.5).div_(2)),
    "causal": Attend(lambda s: causal(s / 3)),
    "causal in place": Attend(lambda s: s.masked_fill_(torch.ones(16, 16).tril() == 0, -1e9)),
    "causal in the scores' size": Attend(lambda s: s.masked_fill(torch.ones_like(s).triu(1) == 1, -math.inf)),
    "causal bias": Attend(lambda s: s / 3 + torch.full((16, 16), -math.inf).triu(1)),
    "reshaped between": Attend(lambda s: (s / 3).view(8, 16, 16).view(2, 4, 16, 16)),
    "dropout of nothing": Attend(lambda s: s / 3, lambda w: F.dropout(w, 0.0, training=True)),
    "weights made contiguous": Attend(lambda s: s / 3, lambda w: w.contiguous()),
}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("program", FIRES.values(), ids=FIRES)
def test_written_attention_becomes_one_call(program: nn.Module, train: bool) -> None:
    outcome = run(program, *QKV, train=train)
    assert (outcome.applied, outcome.refused) == (1, [])


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("sizes", list(itertools.product((1, 2), (1, 2), (1, 3), (1, 4))), ids=str)
def test_strides_beside_sizes_of_one_are_those_of_the_product(sizes: tuple[int, int, int, int], train: bool) -> None:
    batch, heads, length, width = sizes

    def attend(packed: Tensor) -> Tensor:
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        return torch.softmax((q @ k.transpose(-2, -1)) / 3, -1) @ v

    assert run(attend, torch.randn(batch, length, 3, heads, width), train=train).applied == 1


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("shape", [(16, 16), (2, 1, 1, 16), (4, 1, 16)], ids=str)
def test_a_bias_without_a_gradient(shape: tuple[int, ...], train: bool) -> None:
    bias = torch.randn(shape)
    outcome = run(Attend(lambda s: s / 3 + bias.to(s.dtype)), *QKV, train=train)
    assert (outcome.applied, outcome.refused) == (1, [])


@pytest.mark.integration
@pytest.mark.parametrize("fill", [-math.inf, LEAST])
@pytest.mark.parametrize("hidden", [[0], [3, 5], []], ids=str)
def test_a_query_whose_keys_are_all_hidden_gets_what_it_got(hidden: list[int], fill: float) -> None:
    hide = ~KEEP
    hide[hidden] = True
    for on_scores in (
        lambda s, m: s.masked_fill(m, fill),
        lambda s, m: torch.where(m, fill, s),
        lambda s, m: torch.where(~m, s, fill),
        lambda s, m: s + torch.zeros(16, 16).masked_fill(m, fill),
    ):
        outcome = run(Attend(on_scores), *QKV, hide)
        assert outcome.applied == 1
        assert outcome.outputs[0].isnan().any() == (bool(hidden) and fill == -math.inf)


def test_hidden_queries_spoil_the_same_gradients() -> None:
    bias = torch.zeros(2, 4, 16, 16)
    bias[0, 1, 2] = -math.inf

    assert run(Attend(lambda s: s / 3 + bias.to(s.dtype)), *QKV, train=True).applied == 1


@pytest.mark.integration
@pytest.mark.parametrize("inner", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("train", [False, True])
def test_blocks_as_people_write_them(inner: str, train: bool) -> None:
    model, args, _ = attention_block(train, 1)
    outcome = run(model, args[0][:, :32], train=train, inner=inner)
    assert (outcome.applied, outcome.refused) == (4, [])


@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.integration)])
def test_half_precision(inner: str) -> None:
    assert run(copy.deepcopy(FIRES["causal"]).bfloat16(), *(t.bfloat16() for t in QKV), inner=inner).applied == 1


def test_three_dimensions_are_views_of_four() -> None:
    flat = tuple(t.flatten(0, 1) for t in QKV)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / 3, -1), v)

    assert run(attend, *flat).applied == 1


def test_a_mask_that_is_applied_to_four_dimensions_between_products_of_three() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = torch.bmm(q, k.transpose(1, 2)).view(2, 4, 16, 16) + bias
        return torch.bmm(torch.softmax(scores.view(8, 16, 16), -1), v)

    assert run(attend, *(t.flatten(0, 1) for t in QKV), torch.randn(2, 1, 1, 16)).applied == 1


def test_what_follows_sees_the_strides_that_it_saw() -> None:
    """Heads as a projection leaves them: the fused kernel's result lies in that order, the product's does not."""

    def attend(x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (t.transpose(1, 2) for t in x.view(2, 16, 3, 4, 8).unbind(2))
        attended = torch.softmax(q @ k.transpose(-2, -1) / 3, -1) @ v
        return attended, attended.view(2, -1), attended.transpose(1, 2).reshape(2, 16, 32).add_(1)

    for train in (False, True):
        outcome = run(attend, torch.randn(2, 16, 96), train=train)
        assert outcome.applied == 1
        assert outcome.outputs[0].data_ptr() == outcome.outputs[1].data_ptr() != outcome.outputs[2].data_ptr()


def test_views_of_a_result_that_is_not_returned() -> None:
    """Behind a fused kernel AOTAutograd fails to make them again."""

    def attend(x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (t.transpose(1, 2) for t in x.view(1, 36, 3, 1, 3).unbind(2))
        attended = torch.softmax(q @ k.transpose(-2, -1) / 2, -1) @ v
        flat = attended.transpose(1, 2).flatten(2)
        return flat, flat.detach()

    outcome = run(attend, torch.randn(1, 36, 9))
    assert outcome.applied == 0
    assert "AOTAutograd" in outcome.refused[0].reason
    assert run(lambda x: attend(x)[0], torch.randn(1, 36, 9)).applied == 1


@pytest.mark.parametrize("train", [False, True])
def test_pixels_that_attend_to_pixels(train: bool) -> None:
    """Queries and keys from convolutions: channels come before pixels, and fused kernels want them after."""

    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Conv2d(8, 24, 1)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).flatten(2).chunk(3, 1)
            weights = torch.softmax(torch.bmm(q.permute(0, 2, 1), k) * 8**-0.5, 2)
            return torch.bmm(weights, v.permute(0, 2, 1)).permute(0, 2, 1).reshape(x.shape)

    assert run(Pixels(), torch.randn(2, 8, 4, 4), train=train).applied == 1


def test_one_head_has_the_strides_of_a_new_tensor() -> None:
    def attend(x: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in x.view(2, 16, 3, 1, 8).unbind(2))
        attended: Tensor = torch.softmax(q @ k.transpose(-2, -1) / 3, -1) @ v
        return attended

    assert run(attend, torch.randn(2, 16, 24), train=True).applied == 1


class ReturnsWeights(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(q @ k.transpose(-2, -1), -1)
        return weights @ v, weights


class UsesScores(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = q @ k.transpose(-2, -1)
        return torch.softmax(scores / 3, -1) @ v, scores.mean(-1)


class WritesValues(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = k.clone()
        weights = torch.softmax(q @ keys.transpose(-2, -1), -1)
        keys.zero_()
        return weights @ v + keys


class WritesHeads(nn.Module):
    """Heads as a projection leaves them: the product reads copies of them, a fused kernel reads what is written."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = k.transpose(1, 2).contiguous().transpose(1, 2)
        weights = torch.softmax(q @ keys.transpose(-2, -1), -1)
        keys.zero_()
        return weights @ v + keys


class Keeps(nn.Module):
    """Writes down what nobody reads from there before the values have been summed."""

    def __init__(self, keep: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.zeros(2, 4, 16, 16)
        weights = torch.softmax(q @ k.transpose(-2, -1), -1)
        self.keep(kept, weights)
        return weights @ v, kept


def hiding(write: Callable[[Tensor], object]) -> nn.Module:
    """Scores that are written to through a view, by a statement."""

    def on_scores(scores: Tensor) -> Tensor:
        write(scores)
        return scores

    return Attend(on_scores)


class WithoutGradient(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.no_grad():
            weights = torch.softmax(q @ k.transpose(-2, -1), -1)
        return weights @ v


def _bias(scores: Tensor) -> Tensor:
    return torch.ones(16, 16, dtype=scores.dtype).cumsum(0)


REFUSED = {
    "weights returned": (ReturnsWeights(), "also used by"),
    "scores used": (UsesScores(), "also used by"),
    "keys written to": (WritesValues(), "writes into an operand"),
    "heads written to": (WritesHeads(), "writes into an operand"),
    "weights copied elsewhere": (Keeps(lambda kept, weights: kept.copy_(weights)), "also given to copy_"),
    "weights stored elsewhere": (Keeps(lambda kept, weights: kept.__setitem__(slice(None), weights)), "also given to"),
    "a column of scores set": (hiding(lambda s: s.__setitem__((..., 3), -math.inf)), "also given to"),
    "the diagonal hidden": (hiding(lambda s: s.diagonal(dim1=-2, dim2=-1).fill_(-1e9)), "also given to fill_"),
    "scaled through a view": (hiding(lambda s: s.view(-1).mul_(0.5)), "also given to mul_"),
    "no gradient for the weights": (WithoutGradient(), "changes how torch computes"),
    "scores transposed": (Attend(lambda s: s.transpose(-1, -2)), "aten.transpose"),
    "heads permuted": (Attend(lambda s: s / 3, lambda w: w.flip(1)), None),
    "weights transposed": (Attend(lambda s: s, lambda w: w.transpose(-1, -2)), "aten.transpose"),
    "weights detached": (Attend(lambda s: s, lambda w: w.detach()), "the scores go through aten."),
    "capped": (Attend(lambda s: s.tanh()), "tanh"),
    "shifted": (Attend(lambda s: s + 1e6), "a number is added"),
    "negative": (Attend(lambda s: s * -0.3), "multiplied with -0.3"),
    "scaled after": (Attend(lambda s: (s + _bias(s)) / 3), "a scale after the bias"),
    "two biases": (Attend(lambda s: s + _bias(s) + _bias(s)), "more than one mask"),
    "softmax in another dtype": (Attend(lambda s: s.bfloat16().to(s.dtype)), "changes dtype"),
    "a fill that hides little": (Attend(lambda s: s.masked_fill(torch.ones(16, 16).triu(1) > 0, -2e4)), "may hide"),
    "rounded": (Attend(lambda s: torch.div(s, 3, rounding_mode="floor")), "rounding_mode"),
    "grouped heads": (Attend(lambda s: s[:, :1].expand(2, 4, 16, 16)), None),
}


@pytest.mark.parametrize(("program", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_must_stay_as_it_is_written(program: nn.Module, reason: str | None) -> None:
    outcome = run(program, *QKV, train=not isinstance(program, WritesValues | WritesHeads | Keeps))
    assert outcome.applied == 0
    if reason is not None:
        (refusal,) = outcome.refused
        assert reason in refusal.reason


def test_dropout_draws_its_own_numbers() -> None:
    program = Attend(lambda s: s / 3, lambda w: F.dropout(w, 0.3, training=True))
    torch.compile(program, backend="frx", options={"plan": "all", "inner": "eager"})(*QKV)
    (done,) = [d for d in backend.rewritten() if any("attention" in r.subject for r in d.refused)]
    assert "drops weights out" in done.refused[0].reason


def test_masks_that_may_hide_all_keys_stay_in_training() -> None:
    program = Attend(lambda s, keep: s.masked_fill(~keep, float("-inf")))
    (refusal,) = run(program, *QKV, KEEP, train=True).refused
    assert "other gradients" in refusal.reason


def test_a_number_that_hides_may_let_through() -> None:
    """In a row that is all hidden, one score then counts as much as another, but only as far as rounding goes."""
    program = Attend(lambda s, keep: s.masked_fill(~keep, -1e9))
    (refusal,) = run(program, *QKV, KEEP).refused
    assert "lets through" in refusal.reason


class Written(Attend):
    """The same, with `write` called on its operands and its result before it returns a copy of that."""

    def __init__(self, write: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__(lambda scores: scores)
        self.write = write

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = self.project(q)
        result = torch.softmax(q @ self.project(k).transpose(-2, -1), -1) @ self.project(v)
        kept = result.clone()
        self.write(q, result)
        return kept


@pytest.mark.parametrize("train", [True, False])
def test_a_result_that_is_written_into_is_not_there_for_the_backward(train: bool) -> None:
    def write(_query: Tensor, result: Tensor) -> None:
        result[:, 0].mul_(2.0)

    outcome = run(Written(write), *QKV, train=train)
    assert (outcome.applied, len(outcome.refused)) == ((0, 1) if train else (1, 0))
    assert all("writes later" in refusal.reason for refusal in outcome.refused)


def test_what_is_made_of_its_operands_may_be_written_into() -> None:
    outcome = run(Written(lambda query, result: (query * result).mul_(2.0)), *QKV, train=True)
    assert (outcome.applied, outcome.refused) == (1, [])


def test_a_bias_that_learns() -> None:
    (refusal,) = run(Attend(lambda s, bias: s + bias), *QKV, torch.randn(16, 16), train=True).refused
    assert "gradient" in refusal.reason


def test_where_torch_has_no_fused_kernel_nothing_is_changed() -> None:
    q, k, _ = QKV

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1), -1) @ v

    (refusal,) = run(attend, q, k, torch.randn(2, 4, 16, 12)).refused
    assert "no fused kernel" in refusal.reason


def test_symbolic_sizes() -> None:
    (refusal,) = run(FIRES["divided"], *QKV, dynamic=True).refused
    assert "symbolic" in refusal.reason


def test_symbolic_sizes_behind_a_kernel_that_takes_numbers() -> None:
    def attend(x: Tensor) -> Tensor:
        q = F.pad(x, [2, 0])
        return torch.softmax((q @ q.transpose(-2, -1)) / 3, -1) @ q

    (refusal,) = run(attend, torch.randn(3, 6, 1).expand(3, 6, 5), dynamic=True).refused
    assert "symbolic" in refusal.reason


@pytest.mark.integration
def test_solved_asks_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def times(*written_and_one: float | None) -> Outcome:
        monkeypatch.setattr(pre_autograd, "time_attention", lambda *_: written_and_one)
        return run(FIRES["divided"], *QKV, plan="solved")

    assert times(2e-3, 1e-3).applied == 1
    assert "in one call" in times(1e-3, 2e-3).refused[0].reason
    assert "not timed" in times(1e-3, None).refused[0].reason


@pytest.mark.parametrize("of", ["the scale", "the diagonal", "the fill"])
def test_numbers_that_change_from_call_to_call(of: str) -> None:
    """Dynamo compiles the third call for any number; what is seen there is the second's."""
    hide = ~KEEP

    def attend(q: Tensor, k: Tensor, v: Tensor, number: int) -> Tensor:
        scores = q @ k.transpose(-2, -1)
        if of == "the scale":
            scores = scores / number
        elif of == "the diagonal":
            scores = scores.masked_fill(torch.ones(16, 16).triu(number - 3) > 0, -math.inf)
        else:
            scores = scores.masked_fill(hide, number * -1e30)
        return torch.softmax(scores, -1) @ v

    compiled = torch.compile(attend, backend="frx", options={"plan": "all", "inner": "eager"})
    for number in (3, 4, 5, 7):
        torch.testing.assert_close(compiled(*QKV, number), attend(*QKV, number), equal_nan=True)


@pytest.mark.integration
@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("shape", [(2, 1, 16, 8), (2, 16, 8)], ids=str)
def test_what_is_returned_may_be_written_into_before_the_backward(shape: tuple[int, ...], inner: str) -> None:
    """A product keeps its operands for the backward and not its result, which a fused kernel does."""

    def attend(x: Tensor) -> Tensor:
        q, k, v = (x * 1.0).unbind(-2)
        attended: Tensor = torch.softmax(q @ k.transpose(-2, -1), -1) @ v
        return attended

    def gradient(program: Callable[[Tensor], Tensor]) -> Tensor:
        x = torch.randn(*shape[:-1], 3, shape[-1], generator=torch.Generator().manual_seed(0)).requires_grad_()
        program(x).mul_(2).square().sum().backward()
        assert x.grad is not None
        return x.grad

    compiled = torch.compile(attend, backend="frx", options={"plan": "all", "inner": inner})
    torch.testing.assert_close(gradient(compiled), gradient(attend), rtol=1e-4, atol=1e-4)


def test_forward_mode_autodiff_is_refused() -> None:
    """Nor may the attempt leave torch in the middle of taking one."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.jvp(lambda one: torch.softmax(one @ k.transpose(-2, -1), -1) @ v, (q,), (2 * q,))

    (refusal,) = run(attend, *QKV).refused
    assert "forward mode" in refusal.reason


class Onward(Attend):
    """The same, with its result read by something else than the caller."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor) -> Tensor:
        return super().forward(q, k, v, *extra) * 2


@pytest.mark.integration
@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("train", [False, True])
def test_both_ways_are_timed(inner: str, train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    own = pre_autograd.time_attention

    def noted(*given: Any) -> Any:
        seen.append(own(*given))
        return seen[-1]

    monkeypatch.setattr(pre_autograd, "time_attention", noted)
    run(Onward(lambda s: causal(s / 3)), *QKV, plan="solved", inner=inner, train=train)
    ((written, single),) = seen
    assert written > 0
    assert single > 0


def test_gradients_that_would_lie_otherwise_in_memory() -> None:
    """Fused kernels make gradients of heads as a projection leaves them; here they are the program's."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1), -1) @ v

    assert run(attend, *QKV).applied == 1
    (refusal,) = run(attend, *QKV, train=True).refused
    assert "gradients would have other strides" in refusal.reason


@pytest.mark.gives_way
def test_a_failure_leaves_the_graph_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = pre_autograd._trace
    calls: list[int] = []

    def broken(*given: Any, **how: Any) -> Any:
        calls.append(1)
        if len(calls) > 2:
            raise ZeroDivisionError("a bug")
        return traced(*given, **how)

    monkeypatch.setattr(pre_autograd, "_trace", broken)
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError: a bug"):
        assert run(FIRES["divided"], *QKV).applied == 0


def test_outputs_that_would_look_different_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(pre_autograd, "_describe_visible", lambda *_: seen.append(1) or len(seen))
    (refusal,) = run(FIRES["divided"], *QKV).refused
    assert "other strides" in refusal.reason


@pytest.mark.integration
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_no_graph_or_recompile_more(inner: str) -> None:
    def graphs(program: Callable[..., Any]) -> int:
        torch._dynamo.reset()
        counters.clear()
        for size in (16, 16, 24, 32):
            program(*(torch.randn(2, 4, size, 8) for _ in range(3)))
        return int(counters["stats"]["unique_graphs"])

    program = FIRES["divided"]
    planned = torch.compile(program, backend="frx", options={"plan": "all", "inner": inner})
    assert graphs(planned) == graphs(torch.compile(program, backend=inner))


@pytest.mark.integration
def test_a_second_process_finds_what_the_first_compiled(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import warnings
        warnings.simplefilter("ignore")
        import torch
        from torch._dynamo.utils import counters
        from frx_graph import backend

        def attend(x, weight, mask):
            q, k, v = (t.transpose(1, 2) for t in (x @ weight).view(2, 16, 3, 4, 8).unbind(2))
            scores = (q @ k.transpose(-2, -1)) * 0.3 + mask
            return torch.softmax(scores, -1) @ v

        compiled = torch.compile(attend, backend="frx", options={"plan": "all"})
        compiled(torch.randn(2, 16, 32), torch.randn(32, 96, requires_grad=True), torch.zeros(16, 16)).sum().backward()
        applied = [c.rewrite for done in backend.rewritten() for c in done.applied]
        hits, misses = counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]
        print(applied.count("attention_from_views"), hits, misses)
        """
    )

    def second() -> tuple[int, ...]:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "FRX_CACHE_DIR": str(tmp_path)}
        result = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300, check=True
        )
        return tuple(map(int, result.stdout.split()))

    assert second()[:2] == (1, 0)
    assert second() == (1, 1, 0)
