"""Verdicts on single copies: which holds first, and what it names. What users read of them is `contiguous_churn`'s."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.layout import StridePattern
from frx_graph.measure.operators.operator_contract import ContractEntry, ContractRow, OperatorContract
from frx_graph.passes.copies.copy_necessity import MAX_OPERATORS, Necessity, Verdict, judge_copies
from frx_graph.passes.copies.prediction import predict_copies
from frx_graph.records import Basis, Copy, CopyKind, OperandRole

X = torch.randn(2, 6, 6, 8)


def contract(*, convolution_copies: bool) -> OperatorContract:
    """What a convolution, and a sum behind it, do to channels-last images."""
    entries = {
        "aten.convolution.default": ContractEntry(convolution_copies, 1.0 if convolution_copies else 0.0),
        "aten.sum.dim_IntList": ContractEntry(copied=False),
    }
    rows = tuple(
        ContractRow(target, "test", 0, 4, StridePattern.CHANNELS_LAST, torch.float32, entry)
        for target, entry in entries.items()
    )
    return OperatorContract("cpu-test", "cpu", "2.15", {}, rows)


@pytest.fixture
def verdicts(analyse: Any) -> Any:
    def build(model: nn.Module, *args: Tensor, **fields: Any) -> tuple[Verdict, ...]:
        analysis = analyse(model, *args, copies=lambda facts: predict_copies(facts, {}), **fields)
        return judge_copies(analysis, analysis.copies)

    return build


class Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.permute(0, 3, 1, 2).contiguous()).sum((1, 2, 3))


def test_a_copy_that_its_user_does_not_need_names_the_weight_that_should_follow(verdicts: Any) -> None:
    taken = contract(convolution_copies=False)
    (verdict,) = verdicts(Convolved(), X, contract=taken)
    assert verdict.necessity is Necessity.UNNEEDED
    assert len(verdict.plain_weights) == 1
    (verdict,) = verdicts(
        Convolved().to(memory_format=torch.channels_last), X, contract=contract(convolution_copies=False)
    )
    assert (verdict.necessity, verdict.plain_weights) == (Necessity.UNNEEDED, ())


@pytest.mark.parametrize("known", [contract(convolution_copies=True), None], ids=["it copies", "nothing is known"])
def test_the_operator_that_may_want_the_copy_is_named(verdicts: Any, known: OperatorContract | None) -> None:
    (verdict,) = verdicts(Convolved(), X, contract=known)
    assert (verdict.necessity, verdict.wanted_by) == (Necessity.NEEDED, "convolution")


def test_two_copies_that_undo_each_other_name_each_other(verdicts: Any) -> None:
    def there_and_back(x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous().relu().transpose(1, 2).contiguous().sin()

    first, second = verdicts(Function(there_and_back), torch.randn(2, 3, 4))
    assert (first.necessity, second.necessity) == (Necessity.UNDONE, Necessity.UNDONE)
    assert (first.partner, second.partner) == (second.copy.node, first.copy.node)


def test_of_repeated_copies_the_later_ones_name_the_first(verdicts: Any) -> None:
    def thrice(x: Tensor) -> tuple[Tensor, ...]:
        a = x.t().contiguous()
        b = x.t().contiguous()
        return a, b, x.t().contiguous()

    first, *others = verdicts(Function(thrice), torch.randn(3, 4))
    assert first.necessity is Necessity.NEEDED
    assert [(v.necessity, v.partner) for v in others] == [(Necessity.REPEATED, first.copy.node)] * 2


def test_unread_copy_is_unused_before_anything_else(verdicts: Any) -> None:
    class Forgets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            self.weight.t().clone()
            return x + 1

    (verdict,) = verdicts(Forgets(), torch.randn(3))
    assert verdict.necessity is Necessity.UNUSED


def test_parts_of_one_value_are_a_loop_that_names_it(verdicts: Any) -> None:
    def parts(x: Tensor) -> Tensor:
        return torch.cat([x[i].t().contiguous().view(-1) for i in range(3)])

    found = verdicts(Function(parts), torch.randn(3, 4, 5))
    assert {(v.necessity, v.partner) for v in found} == {(Necessity.LOOP, found[0].partner)}
    assert found[0].partner is not None


def test_rounds_that_depend_on_each_other_are_a_loop_without_a_base(verdicts: Any) -> None:
    def rounds(x: Tensor) -> Tensor:
        for _ in range(3):
            x = (x.t().contiguous().view(-1) * 2).view(4, 4)
        return x

    found = verdicts(Function(rounds), torch.randn(4, 4))
    assert {(v.necessity, v.partner) for v in found} == {(Necessity.LOOP, None)}


def both_written_to(x: Tensor) -> Tensor:
    y, z = [x[i].clone() for i in range(2)]
    return (y.mul_(2) + z.add_(1)).sum()


def one_written_to(x: Tensor) -> Tensor:
    y, z = [x[i].t().contiguous().view(-1) for i in range(2)]
    return y.mul_(2).sum() + z.sum()


def source_written_to(x: Tensor) -> Tensor:
    copies = []
    for i in range(2):
        copies.append(x[i].t().contiguous().view(-1))
        x.mul_(2)
    return torch.cat(copies).sum()


def whole_twice(x: Tensor) -> Tensor:
    y, z = [x.transpose(0, i).contiguous().view(-1) for i in (1, 2)]
    return (y + z).sum()


@pytest.mark.parametrize(
    "program", [both_written_to, one_written_to, source_written_to, whole_twice], ids=lambda p: p.__name__
)
def test_no_loop(verdicts: Any, program: Any) -> None:
    found = verdicts(Function(lambda x: program(x * 2)), torch.randn(3, 4, 5))
    assert len(found) == 2
    assert {v.necessity for v in found} == {Necessity.NEEDED}


def test_copy_behind_too_many_operators_counts_as_needed(verdicts: Any) -> None:
    def long(steps: int) -> Any:
        def run(x: Tensor) -> Tensor:
            y = x.t().contiguous()
            for _ in range(steps):
                y = y.sin()
            return y.sum()

        return run

    (short,) = verdicts(Function(long(3)), torch.randn(3, 4), contract=None)
    (far,) = verdicts(Function(long(MAX_OPERATORS + 1)), torch.randn(3, 4), contract=None)
    assert short.wanted_by is not None
    assert (far.necessity, far.wanted_by) == (Necessity.NEEDED, None)


def test_verdicts_come_in_the_order_of_the_copies_and_strangers_are_needed(analyse: Any) -> None:
    model = Function(lambda x: x.t().contiguous())
    analysis = analyse(model, torch.randn(3, 4), copies=lambda facts: predict_copies(facts, {}))
    (known,) = analysis.copies
    stranger = Copy(
        node="nowhere",
        site=known.site,
        operator="aten.clone",
        kind=CopyKind.EXPLICIT,
        role=OperandRole.INPUT,
        value="x",
        bytes=1,
        count=1,
        phase=Phase.FORWARD,
        basis=Basis.PREDICTED,
        cause="",
    )
    found = judge_copies(analysis, (stranger, known, stranger))
    assert [v.copy for v in found] == [stranger, known, stranger]
    assert found[0] == found[2] == Verdict(stranger, Necessity.NEEDED)


def strided(x: Tensor) -> Tensor:
    return torch.as_strided(x.t().contiguous(), (10,), (1,)) + 1


def strided_part(x: Tensor) -> Tensor:
    # Without the copy this row has the same strides, and other elements behind it.
    return torch.as_strided(x.transpose(0, 1).contiguous()[0, 0], (10,), (1,)) + 1


def strided_behind_a_pointwise(x: Tensor) -> Tensor:
    return torch.as_strided(x.t().contiguous() * 2, (10,), (1,)) + 1


def strided_scatter(x: Tensor) -> Tensor:
    # Without the copy the tensor is contiguous, which every operator is known to take.
    return torch.as_strided_scatter(x.t().clone(memory_format=torch.contiguous_format), torch.ones(5), (5,), (2,)) + 1


@pytest.mark.parametrize(
    ("program", "x"),
    [
        (strided, torch.randn(6, 4)),
        (strided_part, torch.randn(3, 4, 5)),
        (strided_behind_a_pointwise, torch.randn(6, 4)),
        (strided_scatter, torch.randn(4, 6).t()),
    ],
)
def test_a_copy_whose_memory_is_read_as_such_is_needed(verdicts: Any, program: Any, x: Tensor) -> None:
    (first, *_) = verdicts(Function(lambda x: program(x).sin().sum()), x)
    assert first.necessity is Necessity.NEEDED


def test_clone_read_through_as_strided_is_needed(verdicts: Any) -> None:
    # Of the clone element 0 is x[2, 0], of the part that is cloned it is x[0, 0].
    def part(x: Tensor) -> Tensor:
        return torch.as_strided(x[2:].clone(), (3,), (1,), 0).sin()

    (verdict,) = verdicts(Function(part), torch.randn(4, 6))
    assert verdict.necessity is Necessity.NEEDED


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.diagonal(),
        lambda y: y.t()[0],
        lambda y: y[1:, ::2].select(1, 0),
        lambda y: y.unfold(0, 2, 1)[:, 0, 0],
        lambda y: y.view(torch.int32)[:, 1],
    ],
    ids=["diagonal", "transpose", "slice", "unfold", "another dtype"],
)
def test_views_that_keep_to_the_elements_need_no_copy(verdicts: Any, view: Any) -> None:
    (verdict,) = verdicts(Function(lambda x: view(x.t().contiguous()).sin()), torch.randn(4, 6))
    assert verdict.necessity is Necessity.UNNEEDED
