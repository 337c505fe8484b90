from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import InputKind, Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.passes.copies.permute_chains import find_cancelling_span, find_chains
from frx_graph.passes.copies.prediction import predict_copies
from frx_graph.passes.detectors.permute_storm import DETECTOR
from frx_graph.records import Copy, Effort, Finding, Risk, Severity

X = torch.randn(2, 6, 4, 8)
BYTES = X.numel() * 4


def in_graph(facts: GraphFacts) -> Sequence[Copy]:
    return predict_copies(facts, {})


@pytest.fixture
def storms(analyse: Any) -> Any:
    def detect(model: nn.Module, *args: Tensor, **options: Any) -> list[Finding]:
        return list(DETECTOR.detect(analyse(model, *args, copies=in_graph, **options)))

    return detect


class Steps(nn.Module):
    """`x` through a chain that is written in the test."""

    def __init__(self, chain: Any) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, x: Tensor) -> Tensor:
        return self.chain(x.softmax(-1)).sum(-1)


def test_permutes_that_cancel_with_the_copies_between(storms: Any) -> None:
    def there_and_back(x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2).contiguous()
        return x.permute(0, 2, 3, 1).contiguous()

    (finding,) = storms(Steps(there_and_back), X, step_bytes=40 * BYTES)
    assert finding.title == "Reorderings that cancel"
    # Both clones are on the way: two copies, each read and written.
    assert (finding.count_per_step, finding.bytes_per_step) == (1, 4 * BYTES)
    assert finding.nodes == ("permute", "clone", "permute_1", "clone_1")
    assert finding.copies == ()
    assert finding.severity is Severity.HIGH
    assert (finding.effort, finding.risk) == (Effort.LOCAL, Risk.LOW)
    assert "`permute(0, 3, 1, 2)` at test_permute_storm.py:" in finding.fix
    assert "`permute(0, 2, 3, 1)` at test_permute_storm.py:" in finding.fix
    assert "with the copies between" in finding.fix
    assert any("2 copies move" in e.text and "FRX002 count" in e.text for e in finding.evidence)


def with_a_unit_dimension(x: Tensor) -> Tensor:
    x = x.transpose(1, 2).unsqueeze(1)
    return x.transpose(2, 3).squeeze(1)


@pytest.mark.parametrize(
    "chain",
    [
        lambda x: x.transpose(1, 2).relu().transpose(2, 1),
        lambda x: x.movedim(1, 3).movedim(3, 1),
        with_a_unit_dimension,
        lambda x: x.flatten(1, 2).transpose(1, 2).mT.unflatten(1, (6, 4)),
        lambda x: x.permute(0, 2, 3, 1).permute(0, 2, 3, 1).permute(0, 2, 3, 1),
    ],
    ids=["through relu", "movedim", "with a unit dimension", "flattened", "three quarters"],
)
def test_what_cancels_without_a_copy_moves_nothing(storms: Any, chain: Any) -> None:
    (finding,) = storms(Steps(chain), X)
    assert finding.title == "Reorderings that cancel"
    assert finding.bytes_per_step == 0
    assert finding.severity is Severity.INFO
    assert any("they cost their dispatch" in evidence.text for evidence in finding.evidence)


def test_views_that_inductor_compiles_cost_nothing(storms: Any) -> None:
    assert storms(Steps(lambda x: x.transpose(1, 2).relu().transpose(1, 2)), X, inner="inductor") == []


def test_three_reorderings_that_are_one(storms: Any) -> None:
    def three(x: Tensor) -> Tensor:
        return x.transpose(0, 1).transpose(1, 2).transpose(2, 3)

    (finding,) = storms(Steps(three), X)
    assert finding.title == "Reorderings that are one permute"
    assert finding.effort is Effort.ONE_LINE
    assert "write `permute(1, 2, 3, 0)` for the 3 calls" in finding.fix
    assert torch.equal(three(X), X.permute(1, 2, 3, 0))
    assert three(X).stride() == X.permute(1, 2, 3, 0).stride()


def test_a_line_in_several_layers_is_one_finding(storms: Any) -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1).transpose(1, 2).transpose(1, 2)

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer(), Layer()])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    (finding,) = storms(Layers(), X)
    assert finding.count_per_step == 3
    assert finding.site.module_path == "model.layers.*"
    assert finding.modules == ("model.layers.0", "model.layers.1", "model.layers.2")


class Attention(nn.Module):
    """Heads are split off and swapped; `fused` decides who reads them, `shown` if the weights are returned."""

    def __init__(self, fused: bool, shown: bool = False) -> None:
        super().__init__()
        self.fused = fused
        self.shown = shown
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).view(2, 32, 3, 4, 4).permute(2, 0, 3, 1, 4)
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v)
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        return (weights @ v, weights) if self.shown else weights @ v


def test_projections_that_end_in_copies(storms: Any) -> None:
    x = torch.randn(2, 32, 16)
    (finding,) = storms(Attention(fused=False, shown=True), x)
    assert finding.title == "Projections stored in an order that is copied"
    # The copies of q, k and v inside matmul, each of (2, 4, 32, 4) floats.
    assert (finding.count_per_step, finding.bytes_per_step) == (3, 3 * 2 * x.numel() * 4)
    assert finding.saving.predicted_pct_min == 0.0
    assert finding.copies == ()
    # They are views of one projection already: it need not be made anew.
    assert finding.fix.startswith("pass the views of this projection on uncopied: F.scaled_dot_product_attention")
    assert (finding.effort, finding.risk) == (Effort.REFACTOR, Risk.MEDIUM)


def test_the_fix_of_a_written_out_attention_ends_the_copies_of_its_projections(storms: Any) -> None:
    x = torch.randn(2, 32, 16)
    (finding,) = storms(Attention(fused=False), x)
    assert finding.fix.startswith("call F.scaled_dot_product_attention for the attention at test_permute_storm.py:")
    # FRX012 may be left out of the report, so these copies count here, too.
    assert (finding.count_per_step, finding.bytes_per_step) == (3, 3 * 2 * x.numel() * 4)


class Once(nn.Module):
    """The ordinary: a linear layer, one transpose, the keys' two, an einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q = self.linear(x).transpose(1, 2)
        k = x.transpose(1, 2).transpose(2, 3)
        scores = torch.einsum("bhid,bhdj->bhij", q.contiguous(), k.contiguous())
        return self.linear(scores.transpose(1, 2).reshape(-1, 8))


def test_near_misses(storms: Any) -> None:
    assert storms(Once(), torch.randn(2, 8, 4, 8)) == []
    assert storms(Attention(fused=True), torch.randn(2, 32, 16)) == []


def test_the_backward_of_a_linear_layer_transposes_its_gradient_twice_and_is_left_alone(storms: Any) -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    assert storms(Linear(), X, train=True) == []


def test_a_reader_in_between_does_not_hide_the_cancelling_branch(storms: Any) -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x.softmax(-1).transpose(1, 2)
            return y.sum(-1), y.transpose(1, 2).sum(-1)

    (finding,) = storms(Branch(), X)
    assert finding.nodes == ("transpose", "transpose_1")
    # Without the first transpose the sum would be another.
    assert finding.fix.startswith("drop `transpose(1, 2)` at test_permute_storm.py:")
    assert "and read the value from before `transpose(1, 2)` at" in finding.fix
    assert "read elsewhere" in finding.fix


class Program(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def source_is_written_to(x: Tensor) -> Any:
    x = x * 2
    y = x.transpose(1, 2).contiguous()
    x.mul_(3)
    return y.transpose(1, 2) + 1, x.sum()


def copy_is_written_to(x: Tensor) -> Any:
    x = x * 2
    y = x.transpose(1, 2).contiguous()
    y.mul_(3)
    return y.transpose(1, 2) + 1, x.sum()


def last_copy_is_written_to(x: Tensor) -> Any:
    x = x * 2
    y = x.transpose(1, 2).contiguous().transpose(1, 2).contiguous()
    return y.mul_(3).sum(), x.sum()


def later_copy_is_written_to(x: Tensor) -> Any:
    x = x * 2
    y = x.transpose(1, 2).contiguous().transpose(1, 2).unsqueeze(0).contiguous()
    return y.mul_(3).sum(), x.sum()


def copy_has_another_reader(x: Tensor) -> Any:
    y = (x * 2).transpose(1, 2).contiguous()
    return y.transpose(1, 2) + 1, y.view(2, -1).sum(1)


def copy_is_handed_out(x: Tensor) -> Any:
    y = (x * 2).transpose(1, 2).contiguous()
    return y.transpose(1, 2) + 1, y


def input_would_be_handed_out(x: Tensor) -> Any:
    return x.transpose(1, 2).contiguous().transpose(1, 2).contiguous()


def other_strides_would_be_handed_out(x: Tensor) -> Any:
    return (x * 2).transpose(1, 2).contiguous().transpose(1, 2)


def memory_is_read_as_such(x: Tensor) -> Any:
    y = (x * 2).transpose(1, 2).contiguous()
    return torch.as_strided(y, (2, 6, 4, 8), (192, 32, 8, 1)) + 1


def one_of_three_is_read(x: Tensor) -> Any:
    y = (x * 2).transpose(0, 1).transpose(1, 2)
    return y.transpose(2, 3).sum(), y.sum(0)


@pytest.mark.parametrize(
    "program",
    [
        source_is_written_to,
        copy_is_written_to,
        last_copy_is_written_to,
        later_copy_is_written_to,
        copy_has_another_reader,
        copy_is_handed_out,
        input_would_be_handed_out,
        other_strides_would_be_handed_out,
        memory_is_read_as_such,
        one_of_three_is_read,
    ],
    ids=lambda program: program.__name__,
)
def test_operators_that_prevent_reorderings_from_cancelling(storms: Any, program: Any) -> None:
    assert storms(Program(program), X) == []


def written_before(x: Tensor) -> Any:
    x = (x * 2).relu_()
    return x.transpose(1, 2).contiguous().transpose(1, 2) + 1


def read_before_and_after(x: Tensor) -> Any:
    x = x * 2
    y = x.transpose(1, 2).contiguous().transpose(1, 2).contiguous()
    return x.sum() + y.sum() + y.view(2, -1).sum()


def handed_out_in_the_same_strides(x: Tensor) -> Any:
    return (x * 2).transpose(1, 2).contiguous().transpose(1, 2).contiguous()


@pytest.mark.parametrize("program", [written_before, read_before_and_after, handed_out_in_the_same_strides])
def test_operators_that_let_reorderings_cancel(storms: Any, program: Any) -> None:
    (finding,) = storms(Program(program), X)
    assert finding.title == "Reorderings that cancel"
    assert "together they change nothing" in finding.fix
    assert "read elsewhere" not in finding.fix


def test_the_copy_behind_views_that_cancel_stays_where_it_is_written_to(storms: Any) -> None:
    def views(x: Tensor) -> Any:
        x = x * 2
        y = x.transpose(1, 2).transpose(1, 2).clone()
        return y.mul_(3).sum(), x.sum()

    (finding,) = storms(Program(views), X)
    assert finding.nodes == ("transpose", "transpose_1")
    assert "copies" not in finding.fix


def composed(orders: Sequence[Sequence[int]]) -> list[int]:
    """The one permute that a list of permutes is."""
    result = list(range(4))
    for order in orders:
        result = [result[dim] for dim in order]
    return result


def permutes(orders: Sequence[Sequence[int]]) -> GraphFacts:
    """The facts of `x.permute(orders[0]).permute(orders[1])...` without capturing it."""
    site = CallSite("model.py", 1, "forward", "model")
    names = ["x", *(f"permute_{index}" for index in range(len(orders)))]
    moved, values, ops = X, {}, []
    for index, name in enumerate(names):
        if index:
            moved = moved.permute(*orders[index - 1])
            arguments = (ValueRef(names[index - 1]), tuple(orders[index - 1]))
            target, operator = "aten.permute.default", "aten.permute"
            ops.append(
                OpFacts(
                    name, target, operator, arguments, {}, (names[index - 1],), (name,), (), Phase.FORWARD, site, True
                )
            )
        values[name] = ValueFacts(
            name=name,
            shape=tuple(moved.shape),
            strides=moved.stride(),
            dtype=moved.dtype,
            device=moved.device,
            storage=0,
            producer=name if index else None,
            users=tuple(names[index + 1 : index + 2]),
            kind=None if index else InputKind.ARGUMENT,
        )
    return GraphFacts("0/0", "test", False, values, tuple(ops), ("x",), (names[-1],))


@given(st.lists(st.permutations(range(4)), min_size=2, max_size=4))
def test_reorderings_cancel_exactly_where_two_or_more_compose_to_nothing(orders: list[list[int]]) -> None:
    facts = permutes(orders)
    ends = range(len(orders) + 1)
    expected = any(
        composed(orders[first:last]) == [0, 1, 2, 3] and sum(o != sorted(o) for o in orders[first:last]) > 1
        for first in ends
        for last in ends[first:]
    )
    assert any(find_cancelling_span(facts, chain) is not None for chain in find_chains(facts)) == expected
