from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.measure.operators.operator_measurement import LayoutTimes, OperatorMeasurement
from frx_graph.passes import confidence
from frx_graph.passes.detectors.hidden_copy import DETECTOR
from frx_graph.records import Copy, CopyKind, Effort, OperandRole, Risk, Severity

Copies = Callable[[GraphFacts], Sequence[Copy]]
IMAGE = torch.randn(2, 8, 6, 6)
IMAGE_BYTES = IMAGE.numel() * 4


def texts(finding: Any) -> list[str]:
    return [evidence.text for evidence in finding.evidence]


class Patches(nn.Module):
    """A vision transformer's patch embedding: convolution, flatten, transpose, layer norm."""

    def __init__(self, norms: int = 1) -> None:
        super().__init__()
        self.proj = nn.Conv2d(8, 8, 3, padding=1)
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(norms)])

    def forward(self, x: Tensor) -> list[Tensor]:
        tokens = self.proj(x).flatten(2).transpose(1, 2)
        return [norm(tokens) for norm in self.norms]


@pytest.fixture
def layer_norm_copies(copy_at: Any) -> Copies:
    """What the CPU does: layer_norm copies an input that is not contiguous."""

    def predict(facts: GraphFacts) -> Sequence[Copy]:
        return [
            copy_at(facts, op.node, op.inputs[0])
            for op in facts.ops
            if op.operator == "aten.native_layer_norm"
            and facts.values[op.inputs[0]].layout.value in ("permuted", "strided", "channels_last")
        ]

    return predict


def test_a_copying_operator_is_found_with_the_view_that_made_the_strides(
    analyse: Any, layer_norm_copies: Copies
) -> None:
    (finding,) = DETECTOR.detect(analyse(Patches(), IMAGE, copies=layer_norm_copies, step_bytes=20 * IMAGE_BYTES))
    assert (finding.count_per_step, finding.bytes_per_step) == (1, 2 * IMAGE_BYTES)
    assert finding.nodes == ("native_layer_norm",)
    assert finding.site.module_path == "model.norms.0"
    assert finding.site.file == __file__
    assert finding.title == "native_layer_norm copies its input inside"
    assert finding.severity is Severity.HIGH
    assert finding.confidence == confidence.INFERRED
    assert any("(2, 36, 8) fp32, strides (288, 1, 36)" in text for text in texts(finding))
    assert any("made so by `transpose(1, 2)` in test_hidden_copy.py:" in text for text in texts(finding))


def test_fix_names_the_producer_order_that_avoids_the_copy(analyse: Any, layer_norm_copies: Copies) -> None:
    (finding,) = DETECTOR.detect(analyse(Patches(), IMAGE, copies=layer_norm_copies))
    assert "run the convolution at test_hidden_copy.py:" in finding.fix
    assert "channels-last" in finding.fix
    # It is true: stored so, the same views give strides that layer_norm takes.
    stored = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    assert stored.flatten(2).transpose(1, 2).is_contiguous()


def test_one_contiguous_serves_many_operators(analyse: Any, layer_norm_copies: Copies) -> None:
    (finding,) = DETECTOR.detect(
        analyse(Patches(norms=4), IMAGE, copies=layer_norm_copies, step_bytes=80 * IMAGE_BYTES)
    )
    assert (finding.count_per_step, finding.bytes_per_step) == (4, 8 * IMAGE_BYTES)
    assert finding.site.module_path == "model.norms.*"
    assert "`.contiguous()` once" in finding.fix
    assert "a step copies it 4 times" in finding.fix
    assert "To save them all, run the convolution" in finding.fix
    assert (finding.effort, finding.risk) == (Effort.ONE_LINE, Risk.LOW)
    # Three of the four copies go, the fourth becomes the `.contiguous()`.
    assert finding.saving.predicted_pct_min == pytest.approx(7.5)
    assert finding.saving.predicted_pct_max == pytest.approx(10.0)


def test_backward_copy_is_reported_at_the_forward_line(analyse: Any, copy_at: Any) -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x.transpose(1, 2)).transpose(1, 2)

    def predict(facts: GraphFacts) -> Sequence[Copy]:
        backward = next(op for op in facts.ops if op.operator == "aten.native_layer_norm_backward")
        forward = next(op for op in facts.ops if op.operator == "aten.native_layer_norm")
        return [
            copy_at(facts, forward.node, forward.inputs[0]),
            copy_at(facts, backward.node, backward.inputs[0]),
            copy_at(facts, backward.node, backward.inputs[1]),
        ]

    (finding,) = DETECTOR.detect(analyse(Norm(), torch.randn(2, 8, 36), train=True, copies=predict))
    assert finding.count_per_step == 3
    assert finding.nodes == ("native_layer_norm", "native_layer_norm_backward")
    assert texts(finding)[0] == "3 copies per step move 13.8 kB, 2 of them in the backward"


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.first, self.second):
            x = conv(x)
        return x


@pytest.fixture
def reorders(copy_at: Any) -> Copies:
    """What oneDNN does with plain convolutions: input, weight and output."""

    def predict(facts: GraphFacts) -> Sequence[Copy]:
        copies = []
        for op in facts.ops:
            if op.operator == "aten.convolution":
                for role, name in zip(OperandRole, (*op.inputs[:2], *op.outputs), strict=True):
                    copies.append(copy_at(facts, op.node, name, kind=CopyKind.REORDER, role=role, cause="abcd→aBcd16b"))
        return copies

    return predict


CPU = DeviceProfile("cpu", "a CPU", 10e9, {}, 64)
FASTER_CHANNELS_LAST = LayoutTimes(4e-3, 1e-3)
FASTER_PLAIN = LayoutTimes(1e-3, 4e-3)


def time_convolutions(analysis: Any, times: LayoutTimes, *others: LayoutTimes) -> Any:
    """Set times of all convolutions; `others` are those of the first ones."""
    nodes = [op.node for op in analysis.facts.ops if op.operator == "aten.convolution"]
    known = dict.fromkeys(nodes, times) | dict(zip(nodes, others, strict=False))
    return replace(analysis, layout_times=known)


def test_a_faster_layout_is_the_only_advice_on_layout_and_stands_by_itself(analyse: Any, reorders: Copies) -> None:
    analysis = analyse(Conv(), IMAGE, copies=reorders, device=CPU)
    (finding,) = DETECTOR.detect(time_convolutions(analysis, FASTER_CHANNELS_LAST))
    assert "channels-last, measured to be faster here (FRX004" in finding.fix
    assert "`.to(memory_format=torch.channels_last)`" in finding.fix
    # FRX004 may be left out of the report.
    assert (finding.count_per_step, finding.bytes_per_step) == (4, 8 * IMAGE_BYTES)


def test_conversions_in_the_faster_layout_need_no_action(analyse: Any, reorders: Copies) -> None:
    analysis = analyse(Conv(), IMAGE, copies=reorders, device=CPU)
    (finding,) = DETECTOR.detect(time_convolutions(analysis, FASTER_PLAIN))
    assert "leave the layout as it is" in finding.fix
    assert (finding.count_per_step, finding.bytes_per_step) == (4, 0)
    assert sum(copy.bytes for copy in finding.copies) == 8 * IMAGE_BYTES
    loaded = replace(time_convolutions(analysis, FASTER_PLAIN), loaded=True)
    assert [one.bytes_per_step for one in DETECTOR.detect(loaded)] == [8 * IMAGE_BYTES]


def test_a_layout_that_ends_only_some_of_the_copies_is_not_the_fix(analyse: Any, reorders: Copies) -> None:
    analysis = analyse(Conv(), IMAGE, copies=reorders, device=CPU)
    partly = time_convolutions(analysis, LayoutTimes(1e-6, 1.0), FASTER_CHANNELS_LAST)
    assert [change.anchors for change in partly.layout_changes] == [("convolution",)]
    (finding,) = DETECTOR.detect(partly)
    assert "measured" not in finding.fix.partition("FRX004")[0]
    assert finding.bytes_per_step == 8 * IMAGE_BYTES


class Transposed(nn.Module):
    """Convolutions that read one value, transposed or not."""

    def __init__(self, convolutions: int, transposed: bool = True) -> None:
        super().__init__()
        self.transposed = transposed
        self.layers = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(convolutions)])

    def forward(self, x: Tensor) -> list[Tensor]:
        t = x.transpose(2, 3) if self.transposed else x
        return [layer(t) for layer in self.layers]


@pytest.fixture
def operand_copies(copy_at: Any) -> Copies:
    """What convolutions do with a transposed image: they make it contiguous, then convert it, and their result."""

    def predict(facts: GraphFacts) -> Sequence[Copy]:
        copies = []
        for op in facts.ops:
            if op.operator == "aten.convolution":
                copies.append(copy_at(facts, op.node, op.inputs[0]))
                copies.append(copy_at(facts, op.node, op.inputs[0], kind=CopyKind.REORDER))
                copies.append(copy_at(facts, op.node, op.outputs[0], kind=CopyKind.REORDER, role=OperandRole.OUTPUT))
        return copies

    return predict


@pytest.mark.parametrize("times", [FASTER_CHANNELS_LAST, FASTER_PLAIN])
@pytest.mark.parametrize(
    ("convolutions", "said"),
    [(3, "call `.contiguous()` once on the value"), (1, "let convolution see `x` as the graph gets it")],
)
def test_no_layout_hides_the_copy_of_a_transposed_operand(
    analyse: Any, operand_copies: Copies, times: LayoutTimes, convolutions: int, said: str
) -> None:
    model = Transposed(convolutions)
    analysis = time_convolutions(analyse(model, IMAGE, copies=operand_copies, device=CPU, step_bytes=10**6), times)
    (finding,) = DETECTOR.detect(analysis)
    assert finding.fix.startswith(said)
    assert finding.bytes_per_step == convolutions * 6 * IMAGE_BYTES
    # One `.contiguous()` saves the copies of the value but one, and not what the library converts.
    sure = 100 * (convolutions - 1) * 2 * IMAGE_BYTES / 10**6
    assert finding.saving.predicted_pct_min == pytest.approx(sure)


def test_one_copy_is_made_in_the_layout_of_the_weights(analyse: Any, operand_copies: Copies) -> None:
    model = Transposed(2).to(memory_format=torch.channels_last)
    (finding,) = DETECTOR.detect(analyse(model, IMAGE, copies=operand_copies))
    assert finding.fix.startswith("call `.contiguous(memory_format=torch.channels_last)` once on the value")


def test_a_sliced_operand_keeps_its_own_fix(analyse: Any, operand_copies: Copies) -> None:
    analysis = analyse(Transposed(1, transposed=False), torch.randn(2, 8, 6, 12)[..., ::2], copies=operand_copies)
    (finding,) = DETECTOR.detect(time_convolutions(replace(analysis, device=CPU), FASTER_CHANNELS_LAST))
    assert finding.fix == "hand the tensor to the model contiguous"
    assert finding.bytes_per_step == 6 * IMAGE_BYTES


class WrittenOut(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q.transpose(1, 2) @ k.permute(0, 2, 3, 1), -1) @ v.transpose(1, 2)


def test_copies_that_a_fused_attention_ends_count_and_are_several(analyse: Any, copy_at: Any) -> None:
    heads = [torch.randn(2, 64, 4, 8) for _ in range(3)]
    (finding,) = DETECTOR.detect(analyse(WrittenOut(), *heads, copies=matmul_copies(copy_at)))
    assert finding.fix.startswith("call F.scaled_dot_product_attention for the attention at test_hidden_copy.py:")
    assert finding.fix.endswith("takes the operands as they are: these copies end")
    assert (finding.count_per_step, finding.bytes_per_step) == (3, 3 * 2 * heads[0].numel() * 4)


def test_a_result_that_the_backward_stores_again_needs_no_action(analyse: Any, copy_at: Any) -> None:
    def copies(facts: GraphFacts) -> Sequence[Copy]:
        (op,) = (op for op in facts.ops if op.operator == "aten.native_layer_norm_backward")
        return [replace(copy_at(facts, op.node, op.outputs[0], role=OperandRole.OUTPUT), phase=Phase.BACKWARD)]

    x = torch.randn(2, 4, 8, requires_grad=True)
    (finding,) = DETECTOR.detect(analyse(nn.LayerNorm(8), x, copies=copies, train=True))
    assert finding.fix.startswith("nothing to change in the source")
    assert finding.bytes_per_step == 0


def test_reorders_around_convolutions_leave_the_weight_to_its_own_rule(analyse: Any, reorders: Copies) -> None:
    (finding,) = DETECTOR.detect(analyse(Conv(), IMAGE, copies=reorders))
    assert (finding.count_per_step, finding.bytes_per_step) == (4, 8 * IMAGE_BYTES)
    assert finding.title == "convolution converts its input and output inside"
    assert finding.modules == ("model.first", "model.second")
    assert {copy.role for copy in finding.copies} == {OperandRole.INPUT, OperandRole.OUTPUT}
    assert "torch.channels_last" in finding.fix
    assert "FRX004" in finding.fix
    assert (finding.effort, finding.risk) == (Effort.ONE_LINE, Risk.LOW)
    # Channels-last may not pay, so nothing is promised.
    assert finding.saving.predicted_pct_min == 0.0


def test_a_measured_call_is_surer_and_names_its_kernel(analyse: Any, reorders: Copies) -> None:
    measured = {node: OperatorMeasurement((), "jit:avx512_core") for node in ("convolution", "convolution_1")}
    (finding,) = DETECTOR.detect(analyse(Conv(), IMAGE, copies=reorders, measurements=measured))
    assert finding.confidence == confidence.MEASURED
    assert "the kernel that runs is jit:avx512_core" in texts(finding)


def matmul_copies(copy_at: Any) -> Copies:
    """matmul's folding copies: a clone before an `_unsafe_view`."""

    def predict(facts: GraphFacts) -> Sequence[Copy]:
        return [
            copy_at(facts, op.node, op.inputs[0], operator="aten.matmul")
            for op in facts.ops
            if op.operator == "aten.clone"
        ]

    return predict


def test_matmul_on_attention_heads_points_at_sdpa(analyse: Any, copy_at: Any) -> None:
    class Scores(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return q.transpose(1, 2) @ k.permute(0, 2, 3, 1)

    shape = (2, 16, 4, 8)
    (finding,) = DETECTOR.detect(
        analyse(Scores(), torch.randn(shape), torch.randn(shape), copies=matmul_copies(copy_at))
    )
    assert (finding.count_per_step, finding.bytes_per_step) == (2, 4 * 2 * 16 * 4 * 8 * 4)
    assert finding.confidence == confidence.MEASURED  # the clone stands in the graph
    assert "scaled_dot_product_attention" in finding.fix


def test_linear_layers_that_share_a_transposed_input(analyse: Any, copy_at: Any) -> None:
    class Projections(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

        def forward(self, x: Tensor) -> list[Tensor]:
            tokens = x.transpose(1, 2)
            return [layer(tokens) for layer in self.layers]

    (finding,) = DETECTOR.detect(analyse(Projections(), torch.randn(2, 8, 36), copies=matmul_copies(copy_at)))
    assert finding.count_per_step == 3
    assert "a step copies it 3 times" in finding.fix


def test_matmul_with_an_expanded_operand(analyse: Any, copy_at: Any) -> None:
    class Expanded(nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return torch.matmul(x, w.expand(4, 8, 8).transpose(1, 2))

    def predict(facts: GraphFacts) -> Sequence[Copy]:
        return [copy_at(facts, "bmm", "transpose", operator="aten.matmul")]

    (finding,) = DETECTOR.detect(analyse(Expanded(), torch.randn(4, 8, 8), torch.randn(8, 8), copies=predict))
    assert "expanded operand" in finding.fix


def test_an_input_that_arrives_strided(analyse: Any, layer_norm_copies: Copies) -> None:
    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm(x, (8,))

    (finding,) = DETECTOR.detect(analyse(Norm(), torch.randn(2, 8, 36).transpose(1, 2), copies=layer_norm_copies))
    assert finding.fix == "hand the tensor to the model contiguous"
    assert any("it comes into the graph that way as x" in text for text in texts(finding))


@pytest.mark.parametrize("kind", [CopyKind.EXPLICIT, CopyKind.RESHAPE])
def test_explicitly_requested_copy_is_not_hidden(analyse: Any, copy_at: Any, kind: CopyKind) -> None:
    class Asked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.transpose(1, 2).contiguous()

    def predict(facts: GraphFacts) -> Sequence[Copy]:
        return [copy_at(facts, "clone", "transpose", kind=kind)]

    assert list(DETECTOR.detect(analyse(Asked(), torch.randn(2, 3, 4), copies=predict))) == []


def test_contiguous_operands_make_no_finding(analyse: Any, layer_norm_copies: Copies) -> None:
    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm(x.transpose(1, 2).contiguous(), (8,))

    assert list(DETECTOR.detect(analyse(Norm(), torch.randn(2, 8, 36), copies=layer_norm_copies))) == []


class Upsampled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.proj(x), scale_factor=2)


@pytest.mark.parametrize(
    ("value", "role"), [("convolution", OperandRole.INPUT), ("upsample_nearest2d", OperandRole.OUTPUT)]
)
def test_an_operator_that_copies_though_its_operand_is_contiguous_wants_channels_last(
    analyse: Any, copy_at: Any, value: str, role: OperandRole
) -> None:
    def predict(facts: GraphFacts) -> Sequence[Copy]:
        return [copy_at(facts, "upsample_nearest2d", value, role=role)]

    (finding,) = DETECTOR.detect(analyse(Upsampled(), IMAGE, copies=predict))
    assert "model.to(memory_format=torch.channels_last)" in finding.fix
    assert "before its strides change" not in finding.fix
    assert ".contiguous()" not in finding.fix


def test_a_view_of_an_input_is_not_helped_by_contiguous(analyse: Any, layer_norm_copies: Copies) -> None:
    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm(x.transpose(1, 2), (8,))

    (finding,) = DETECTOR.detect(analyse(Norm(), torch.randn(2, 8, 36), copies=layer_norm_copies))
    assert "`.contiguous()` behind it only moves the copy" in finding.fix
    assert "made so by `transpose(1, 2)`" in finding.fix


def test_fix_for_a_view_of_a_result_is_to_apply_it_later(analyse: Any, layer_norm_copies: Copies) -> None:
    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm(x.exp().transpose(1, 2), (8,))

    (finding,) = DETECTOR.detect(analyse(Norm(), torch.randn(2, 8, 36), copies=layer_norm_copies))
    assert "before its strides change" in finding.fix


def converts(value: str, role: OperandRole = OperandRole.INPUT, kind: CopyKind = CopyKind.REORDER) -> Any:
    """One copy that the convolution makes of `value`."""

    def predict(facts: GraphFacts, copy_at: Any) -> Sequence[Copy]:
        return [copy_at(facts, "convolution", value, kind=kind, role=role)]

    return predict


def fix_of(analyse: Any, copy_at: Any, model: nn.Module, x: Tensor, predict: Any) -> str:
    (finding,) = DETECTOR.detect(analyse(model, x, copies=lambda facts: predict(facts, copy_at)))
    return finding.fix


def test_fix_for_a_1d_convolution_is_a_2d_one(analyse: Any, copy_at: Any) -> None:
    fix = fix_of(analyse, copy_at, nn.Conv1d(8, 8, 3), torch.randn(2, 8, 32), converts("arg2_1"))
    assert "F.conv2d(x.unsqueeze(2), weight.unsqueeze(2)" in fix
    assert "model.to(memory_format" not in fix


def test_only_the_input_was_forgotten(analyse: Any, copy_at: Any) -> None:
    model = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
    for kind in (CopyKind.REORDER, CopyKind.OPERATOR):
        fix = fix_of(analyse, copy_at, model, IMAGE, converts("arg2_1", kind=kind))
        assert fix.startswith("convert the input `")
        assert fix.endswith("` too: `.to(memory_format=torch.channels_last)`")


def test_a_contiguous_in_front_of_a_channels_last_convolution_is_named(analyse: Any, copy_at: Any) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x.contiguous())

    x = IMAGE.to(memory_format=torch.channels_last)
    assert fix_of(analyse, copy_at, Plain(), x, converts("clone")).startswith("drop the copy at test_hidden_copy.py:")


def test_fix_for_sequences_does_not_suggest_channels_last(analyse: Any, copy_at: Any) -> None:
    class Median(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp().median(1).values

    def predict(facts: GraphFacts) -> Sequence[Copy]:
        return [copy_at(facts, "median", "exp")]

    for shape in ((2, 8, 32), (2, 8, 8, 8)):
        (finding,) = DETECTOR.detect(analyse(Median(), torch.randn(shape), copies=predict))
        assert "channels_last" not in finding.fix
