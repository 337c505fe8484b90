"""Predicted copies of training steps, beside what one real step of the same model makes."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from frx_graph.capture.aten_trace import run_step
from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.model import capture_model
from frx_graph.facts.build import build_graph_facts
from frx_graph.measure.operators.eager_observer import observe_eager
from frx_graph.measure.operators.operator_call import measure_operators
from frx_graph.passes.copies.prediction import list_signatures_to_measure, predict_copies
from frx_graph.records import Copy, CopyKind, OperandRole


def predict(model: nn.Module, x: Tensor) -> tuple[Copy, ...]:
    (graph,) = capture_model(model, (x,), train=True).graphs
    facts = build_graph_facts(graph)
    signatures = list_signatures_to_measure(facts)
    measured = measure_operators(set(signatures.values()))
    return predict_copies(facts, {node: measured[s] for node, s in signatures.items() if s in measured})


class TransposedGradient(nn.Module):
    """The gradient of `weight` arrives transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.t()


class PlainGradient(TransposedGradient):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class FoldedProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.permute(0, 2, 3, 1))


class NormedSequence(nn.Module):
    """The layer norm's incoming gradient is transposed, the one that it makes is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.first(x).view(x.shape)).transpose(1, 2)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (TransposedGradient(), (4, 6)),
        (PlainGradient(), (6, 4)),
        (FoldedProduct(), (2, 8, 4, 4)),
        (NormedSequence(), (2, 8, 16)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_predicted_copies_match_a_training_step(model: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    observation = observe_eager(lambda: run_step(model, (x,), {}, train=True), model)
    observed = Counter((c.operator, c.kind, c.role, c.site.line, c.phase, c.bytes) for c in observation)
    predicted = Counter(
        (c.operator, c.kind.value, c.role.value, c.site.line, c.phase, c.bytes) for c in predict(model, x)
    )
    assert predicted == observed


def test_a_gradient_in_other_strides_than_its_parameter_is_copied() -> None:
    (copy,) = predict(TransposedGradient(), torch.randn(4, 6))
    assert (copy.operator, copy.kind, copy.role) == ("AccumulateGrad", CopyKind.OPERATOR, OperandRole.WEIGHT)
    assert (copy.phase, copy.bytes) == (Phase.BACKWARD, 2 * 24 * 4)


def test_a_gradient_in_its_parameters_strides_is_not() -> None:
    assert predict(PlainGradient(), torch.randn(6, 4)) == ()


def test_gradients_are_paired_with_parameters() -> None:
    (graph,) = capture_model(FoldedProduct(), (torch.randn(2, 8, 4, 4),), train=True).graphs
    facts = build_graph_facts(graph)
    shapes = {facts.values[p].path: facts.values[g].shape for p, g in facts.gradients}
    assert {path.rpartition(".")[2]: shape for path, shape in shapes.items()} == {"weight": (4, 8), "bias": (4,)}
