"""Predicted copies: kinds, roles, bytes and counts, with the operators measured by themselves on this machine."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frx_graph.advisor.advisor import advise
from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.model import capture_model
from frx_graph.facts.build import build_graph_facts
from frx_graph.measure.operators.operator_call import measure_operators
from frx_graph.passes.copies.prediction import find_unknown_operators, list_signatures_to_measure, predict_copies
from frx_graph.records import Copy, CopyKind, OperandRole


def _predict(model: nn.Module, *args: Tensor, train: bool = False) -> tuple[Copy, ...]:
    copies: list[Copy] = []
    for graph in capture_model(model, args, train=train).graphs:
        facts = build_graph_facts(graph)
        signatures = list_signatures_to_measure(facts)
        measured = measure_operators(set(signatures.values()))
        by_node = {node: measured[signature] for node, signature in signatures.items() if signature in measured}
        assert find_unknown_operators(facts, by_node, None) == ()
        copies.extend(predict_copies(facts, by_node))
    return tuple(copies)


class Explicit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous() + 1


def test_contiguous_of_a_transposed_tensor_is_one_explicit_copy() -> None:
    (copy,) = _predict(Explicit(), torch.randn(2, 3, 4))
    assert (copy.kind, copy.role, copy.count) == (CopyKind.EXPLICIT, OperandRole.INPUT, 1)
    assert copy.bytes == 2 * 2 * 3 * 4 * 4
    assert copy.site.line == inspect.getsourcelines(Explicit.forward)[1] + 1


def test_contiguous_of_a_contiguous_tensor_is_none() -> None:
    class AlreadyThere(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.contiguous() + 1

    assert _predict(AlreadyThere(), torch.randn(2, 3, 4)) == ()


class Reshaped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(2, 12) * 2


def test_a_reshape_that_cannot_be_a_view_is_a_reshape_copy() -> None:
    (copy,) = _predict(Reshaped(), torch.randn(2, 3, 4))
    assert (copy.kind, copy.operator) == (CopyKind.RESHAPE, "aten.reshape")


def _whole(x: Tensor) -> Tensor:
    return torch.empty(64, 32).copy_(x.t())


def _rows(x: Tensor) -> Tensor:
    result = torch.empty(64, 32)
    result[:16] = x.t()[:16]
    return result


def _expanded(x: Tensor) -> Tensor:
    return torch.empty(64, 32).copy_(x[0, :32].expand(64, 32))


def _own_order(x: Tensor) -> Tensor:
    return torch.empty(32, 64).copy_(x)


def _columns(x: Tensor) -> Tensor:
    result = torch.empty(64, 64)
    result[:, :32] = x.t()
    return result


def _converted(x: Tensor) -> Tensor:
    return torch.empty(64, 32, dtype=torch.bfloat16).copy_(x.t())


def _broadcast(x: Tensor) -> Tensor:
    return torch.empty(64, 32).copy_(x[0, :32])


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize(
    ("program", "size"),
    [
        *((_whole, 2 * 64 * 32 * 4), (_rows, 2 * 16 * 32 * 4), (_expanded, 2 * 64 * 32 * 4)),
        *((near_miss, None) for near_miss in (_own_order, _columns, _converted, _broadcast)),
    ],
)
def test_a_copy_into_memory_that_is_there_counts_where_it_is_observed(
    program: Callable[[Tensor], Tensor], size: int | None, inference: bool
) -> None:
    with torch.inference_mode(inference):
        advice = advise(program, (torch.randn(32, 64),), observe=True).advice
    assert advice.observed is not None
    predicted, observed = (
        [(copy.site.location, copy.operator, copy.kind, copy.count, copy.bytes) for copy in copies]
        for copies in (advice.copies, advice.observed)
    )
    assert predicted == observed
    assert [size for *_, size in predicted] == ([] if size is None else [size])


def test_a_dtype_conversion_is_not_a_layout_copy() -> None:
    class Cast(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to(torch.bfloat16).to(torch.float32)

    assert _predict(Cast(), torch.randn(2, 3)) == ()


class FoldingMatmul(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.permute(0, 2, 3, 1))


def test_what_matmul_folds_is_the_operators_copy() -> None:
    (copy,) = _predict(FoldingMatmul(), torch.randn(2, 8, 4, 4))
    assert (copy.kind, copy.operator) == (CopyKind.OPERATOR, "aten.matmul")
    assert copy.bytes == 2 * 2 * 8 * 4 * 4 * 4


def test_a_bmm_of_strided_slices_copies_them_inside() -> None:
    class Sliced(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.bmm(x[:, ::2, ::2], x[:, ::2, ::2])

    copies = _predict(Sliced(), torch.randn(2, 64, 64))
    assert {copy.kind for copy in copies} == {CopyKind.OPERATOR}
    assert sum(copy.bytes for copy in copies) == 2 * 2 * (2 * 32 * 32 * 4)


def test_a_plain_convolution_reorders_input_weight_and_output() -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    copies = _predict(nn.Conv2d(64, 64, 3, padding=1), torch.randn(1, 64, 28, 28))
    by_role = {copy.role: copy for copy in copies if copy.kind is CopyKind.REORDER}
    assert by_role[OperandRole.WEIGHT].bytes == 2 * 64 * 64 * 9 * 4
    if OperandRole.INPUT in by_role:
        assert by_role[OperandRole.INPUT].bytes == 2 * 64 * 28 * 28 * 4


def test_the_backward_copies_at_the_forwards_line() -> None:
    copies = _predict(Explicit(), torch.randn(2, 3, 4, requires_grad=True), train=True)
    assert {copy.site.line for copy in copies} == {inspect.getsourcelines(Explicit.forward)[1] + 1}
    assert Phase.FORWARD in {copy.phase for copy in copies}


class Shared(nn.Module):
    """Two equal layers with a break inside: Dynamo compiles the frame once and runs it twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2).contiguous()
        torch._dynamo.graph_break()
        return F.relu(y)


def test_a_graph_that_runs_twice_a_step_copies_twice() -> None:
    copies = _predict(Shared(), torch.randn(2, 4, 4))
    assert sum(copy.count for copy in copies) == 2
    assert sum(copy.bytes for copy in copies) == 2 * (2 * 2 * 4 * 4 * 4)


class Between(nn.Module):
    """An operator between two channels-last convolutions."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(self.function(self.first(x)))
        return made


@pytest.mark.parametrize(
    "function",
    [
        lambda y: torch.roll(y, 1, 2),
        lambda y: F.channel_shuffle(y, 4),
        lambda y: torch.copysign(y, torch.ones(16, 1, 1)),
        torch.relu,
    ],
    ids=["roll", "channel shuffle", "copysign", "relu"],
)
def test_what_keeps_channels_last_makes_no_convolution_copy(function: Callable[[Tensor], Tensor]) -> None:
    """The fakes of the first three predict a plain result, or the reverse (torch 2.15)."""
    model = Between(function).to(memory_format=torch.channels_last)
    copies = _predict(model, torch.randn(2, 16, 32, 32).contiguous(memory_format=torch.channels_last))
    assert {copy.role for copy in copies} <= {OperandRole.WEIGHT}
