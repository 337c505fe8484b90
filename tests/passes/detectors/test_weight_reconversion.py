from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes import confidence
from frx_graph.passes.copies.prediction import predict_copies
from frx_graph.passes.detectors.weight_reconversion import DETECTOR
from frx_graph.records import Copy, CopyKind, Effort, OperandRole, Risk, Severity
from frx_graph.support.plain_text import format_bytes

WEIGHT_BYTES = 16 * 16 * 3 * 3 * 4
X = torch.randn(2, 16, 8, 8)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Convert:
    """Every convolution, and its backward, converts its weight."""

    def __init__(self, copy_at: Any, kind: CopyKind, cause: str) -> None:
        self.copy_at, self.kind, self.cause = copy_at, kind, cause

    def __call__(self, facts: GraphFacts) -> Sequence[Copy]:
        return [
            self.copy_at(facts, op.node, weight.name, kind=self.kind, role=OperandRole.WEIGHT, cause=self.cause)
            for op in facts.ops
            if op.operator in ("aten.convolution", "aten.convolution_backward")
            for weight in facts.get_input_values(op)
            if weight.is_parameter and len(weight.shape) == 4
        ]


def test_weights_that_onednn_packs_on_every_call(analyse: Any, copy_at: Any) -> None:
    copies = Convert(copy_at, CopyKind.REORDER, "convolution converts abcd to Acdb16a")
    (finding,) = DETECTOR.detect(analyse(Stack(), X, copies=copies, step_bytes=40 * WEIGHT_BYTES))
    assert (finding.count_per_step, finding.bytes_per_step) == (2, 4 * WEIGHT_BYTES)
    assert finding.nodes == ("convolution", "convolution_1")
    assert finding.site.file == __file__
    assert finding.site.module_path == "model.blocks.*.conv"
    assert finding.severity is Severity.HIGH
    assert finding.saving.predicted_pct_min == 0.0
    assert finding.saving.predicted_pct_max == pytest.approx(10.0)
    assert "freezing" in finding.fix
    assert (finding.effort, finding.risk) == (Effort.LOCAL, Risk.MEDIUM)
    assert finding.confidence == confidence.INFERRED
    texts = [evidence.text for evidence in finding.evidence]
    assert "converted per step: model.blocks.0.conv.weight, model.blocks.1.conv.weight" in texts
    assert "convolution converts abcd to Acdb16a (2×)" in texts
    assert [copy.value for copy in finding.copies] == ["arg0_1", "arg3_1"]


def test_training_converts_in_the_backward_too_and_has_no_cheap_fix(analyse: Any, copy_at: Any) -> None:
    copies = Convert(copy_at, CopyKind.REORDER, "convolution converts abcd to Acdb16a")
    (finding,) = DETECTOR.detect(analyse(Stack(), X, copies=copies, train=True))
    # Two in the forward, and in the backward of both, which all stand at the forward's line.
    # No change of the program saves them.
    assert (finding.count_per_step, finding.bytes_per_step) == (4, 0)
    assert sum(copy.bytes for copy in finding.copies) == 8 * WEIGHT_BYTES
    assert finding.severity is Severity.INFO
    assert "optimizer" in finding.fix
    texts = [evidence.text for evidence in finding.evidence]
    assert texts[0].endswith("2 of them in the backward")
    assert "converted per step: model.blocks.0.conv.weight (2×), model.blocks.1.conv.weight (2×)" in texts


def test_a_plain_weight_under_a_channels_last_input_is_one_line_to_fix(analyse: Any, copy_at: Any) -> None:
    copies = Convert(copy_at, CopyKind.OPERATOR, "convolution makes the weight channels-last")
    (finding,) = DETECTOR.detect(analyse(Stack(), X.to(memory_format=torch.channels_last), copies=copies))
    assert "model.to(memory_format=torch.channels_last)" in finding.fix
    assert (finding.effort, finding.risk) == (Effort.ONE_LINE, Risk.LOW)
    assert finding.saving.predicted_pct_min == finding.saving.predicted_pct_max


def test_a_parameter_expanded_over_the_batch(analyse: Any, copy_at: Any) -> None:
    class Expanded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return torch.matmul(x, self.weight.expand(4, 8, 8))

    def copies(facts: GraphFacts) -> Sequence[Copy]:
        (expanded, *_) = (op for op in facts.ops if op.operator == "aten.expand")
        return [copy_at(facts, "bmm", expanded.outputs[0], role=OperandRole.WEIGHT, operator="aten.matmul")]

    (finding,) = DETECTOR.detect(analyse(Expanded(), torch.randn(4, 8, 8), copies=copies))
    assert "do not expand the parameter" in finding.fix
    assert "converted per step: model.weight" in [evidence.text for evidence in finding.evidence]


def test_activations_are_those_of_all_calls_as_the_copies_are(analyse: Any, copy_at: Any) -> None:
    analysis = analyse(Block(), X, copies=Convert(copy_at, CopyKind.REORDER, "convolution converts abcd to Acdb16a"))
    (once,) = DETECTOR.detect(analysis)
    (thrice,) = DETECTOR.detect(replace(analysis, facts=replace(analysis.facts, calls=3)))
    assert once.evidence[-1].text.endswith(f"calls are {format_bytes(2 * X.nbytes)}")
    assert thrice.evidence[-1].text.endswith(f"calls are {format_bytes(6 * X.nbytes)}")


def test_computed_weight_is_not_reported(analyse: Any, copy_at: Any) -> None:
    class Computed(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return nn.functional.conv2d(x, weight)

    def copies(facts: GraphFacts) -> Sequence[Copy]:
        return [copy_at(facts, "convolution", "arg1_1", kind=CopyKind.REORDER, role=OperandRole.INPUT)]

    assert list(DETECTOR.detect(analyse(Computed(), X, torch.randn(16, 16, 3, 3), copies=copies))) == []


def test_nothing_converted_nothing_found(analyse: Any) -> None:
    assert list(DETECTOR.detect(analyse(Stack(), X))) == []


def test_gradients_that_are_copied_into_their_parameters_strides(analyse: Any) -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight.t().exp()

    analysis = analyse(Transposed(), torch.randn(4, 6), train=True)
    (finding,) = DETECTOR.detect(replace(analysis, copies=predict_copies(analysis.facts, {})))
    assert finding.title == "Gradient copied into the strides of the weight"
    assert finding.bytes_per_step == 2 * 24 * 4
