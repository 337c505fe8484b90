from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.layout import StridePattern
from frx_graph.measure.operators.operator_contract import ContractEntry, ContractRow, OperatorContract
from frx_graph.passes import confidence
from frx_graph.passes.copies.prediction import predict_copies
from frx_graph.passes.detectors.contiguous_churn import DETECTOR
from frx_graph.records import Copy, CopyKind, Effort, Finding, Severity

X = torch.randn(2, 6, 6, 8)
BYTES = X.numel() * 4


def contract(*taken: tuple[str, int, int, StridePattern]) -> OperatorContract:
    """A contract that says of (target, operand, rank, pattern) that nothing is copied."""
    rows = tuple(
        ContractRow(target, "test", operand, rank, pattern, torch.float32, ContractEntry(copied=False))
        for target, operand, rank, pattern in taken
    )
    return OperatorContract("cpu-test", "cpu", "2.15", {}, rows)


CONV_TAKES_CHANNELS_LAST = contract(("aten.convolution.default", 0, 4, StridePattern.CHANNELS_LAST))


def asked_for(facts: GraphFacts) -> Sequence[Copy]:
    return [copy for copy in predict_copies(facts, {}) if copy.kind in (CopyKind.EXPLICIT, CopyKind.RESHAPE)]


@pytest.fixture
def churn(analyse: Any) -> Any:
    """The findings of one model, through the package's own prediction of copies."""

    def detect(model: nn.Module, *args: Tensor, **options: Any) -> list[Finding]:
        findings = list(DETECTOR.detect(analyse(model, *args, copies=asked_for, **options)))
        assert all(isinstance(finding, Finding) for finding in findings)
        return findings

    return detect


def what_for(finding: Finding) -> str:
    return next(e.text for e in finding.evidence if e.text.startswith("what the copies are for: "))[25:]


class ContiguousConv(nn.Module):
    """An NHWC stream made plain before a convolution that takes channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.permute(0, 3, 1, 2).contiguous()).sum((1, 2, 3))


def test_a_copy_whose_users_take_the_source(churn: Any) -> None:
    taken = contract(
        ("aten.convolution.default", 0, 4, StridePattern.CHANNELS_LAST),
        ("aten.sum.dim_IntList", 0, 4, StridePattern.CHANNELS_LAST),
    )
    (finding,) = churn(ContiguousConv(), X, contract=taken, step_bytes=20 * BYTES)
    assert (finding.count_per_step, finding.bytes_per_step) == (1, 2 * BYTES)
    assert finding.title == "Copy whose users take the source as it is"
    assert finding.fix == (
        "drop this `.contiguous()`: the source's strides do for convolution, with its weight in channels-last, too "
        "(else that is converted instead)"
    )
    assert (finding.effort, finding.severity) == (Effort.ONE_LINE, Severity.HIGH)
    assert finding.saving.predicted_pct_min == pytest.approx(10.0)
    assert finding.nodes == ("clone",)
    assert finding.site.file == __file__
    assert finding.confidence == confidence.MEASURED


def test_a_weight_that_is_channels_last_already_needs_no_word(churn: Any) -> None:
    taken = contract(
        ("aten.convolution.default", 0, 4, StridePattern.CHANNELS_LAST),
        ("aten.sum.dim_IntList", 0, 4, StridePattern.CHANNELS_LAST),
    )
    model = ContiguousConv()
    model.conv.to(memory_format=torch.channels_last)
    (finding,) = churn(model, X, contract=taken)
    assert finding.fix == "drop this `.contiguous()`: the source's strides do for convolution"


def test_a_user_that_is_not_known_to_take_the_source_keeps_the_copy(churn: Any) -> None:
    for known in (None, CONV_TAKES_CHANNELS_LAST):
        (finding,) = churn(ContiguousConv(), X, contract=known, step_bytes=20 * BYTES)
        assert finding.title == "Explicit copy"
        assert finding.severity is Severity.LOW
        assert finding.saving.predicted_pct_max == 0.0
        blocking = "convolution" if known is None else "sum"
        assert any(f"{blocking} at " in e.text and "not known to take" in e.text for e in finding.evidence)


def test_a_copy_that_gives_the_caller_its_strides_is_needed(churn: Any) -> None:
    class Returned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.permute(0, 3, 1, 2).contiguous() + 1

    (finding,) = churn(Returned(), X, step_bytes=1000 * BYTES)
    assert finding.title == "Explicit copy"
    assert finding.severity is Severity.INFO
    assert "needed as the program is written" in finding.fix
    assert "permute(0, 3, 1, 2)" in finding.fix


class Clones(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        if self.how == "written to":
            y.add_(1)
        elif self.how == "returned":
            return y
        return (x * y).sum()


def test_a_clone_that_nothing_changes(churn: Any) -> None:
    (finding,) = churn(Clones("read"), X)
    assert finding.title == "Clone of a value that is never changed"
    assert finding.effort is Effort.ONE_LINE
    assert finding.saving.predicted_pct_min == finding.saving.predicted_pct_max > 0


@pytest.mark.parametrize("how", ["written to", "returned"])
def test_a_clone_that_protects_its_source(churn: Any, how: str) -> None:
    (finding,) = churn(Clones(how), X)
    assert finding.title == "Explicit copy"
    assert finding.saving.predicted_pct_max == 0.0


def test_two_copies_that_undo_each_other(churn: Any) -> None:
    class There(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.relu().permute(0, 3, 1, 2).contiguous()
            return y.permute(0, 2, 3, 1).contiguous().view(-1, 8)

    first, second = churn(There(), X)
    assert first.title == second.title == "Copy that a later copy undoes"
    assert f"the one at test_contiguous_churn.py:{second.site.line}" in first.fix
    assert f"the one at test_contiguous_churn.py:{first.site.line}" in second.fix
    assert first.bytes_per_step == second.bytes_per_step == 2 * BYTES


def test_copies_undo_each_other_through_pointwise_operators(churn: Any) -> None:
    class There(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.transpose(1, 2).contiguous().relu() * 2
            return y.transpose(1, 2).contiguous()

    assert [finding.title for finding in churn(There(), X)] == ["Copy that a later copy undoes"] * 2


def test_a_copy_with_another_reader_is_not_undone(churn: Any) -> None:
    class There(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x.relu().permute(0, 3, 1, 2).contiguous()
            return y.permute(0, 2, 3, 1).contiguous().view(-1, 8), y.view(2, -1)

    assert [finding.title for finding in churn(There(), X)] == ["Explicit copy", "Explicit copy"]


class CopiedTwice(nn.Module):
    def __init__(self, write_between: bool = False) -> None:
        super().__init__()
        self.write_between = write_between

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        first = y.transpose(1, 2).reshape(-1, 8)
        if self.write_between:
            y.add_(1)
        second = y.transpose(1, 2).reshape(-1, 48)
        return first, second


def test_the_same_value_copied_twice(churn: Any) -> None:
    first, second = churn(CopiedTwice(), X)
    assert first.title == "Reshape that copies"
    assert second.title == "Same value copied again"
    assert (
        second.fix == f"keep the copy that is made at test_contiguous_churn.py:{first.site.line} and use it again here"
    )


def test_a_value_that_changes_between_is_not_the_same(churn: Any) -> None:
    assert [f.title for f in churn(CopiedTwice(write_between=True), X)] == ["Reshape that copies"] * 2


def test_slices_of_one_tensor_are_different_values(churn: Any) -> None:
    class Slices(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            left, right = x.chunk(2, dim=-1)
            return left.reshape(2, -1), right.reshape(2, -1)

    (finding,) = churn(Slices(), X)
    assert finding.title == "Copy in an unrolled loop"
    assert finding.fix == "these are 2 copies of parts of one value: copy x once, before it is split"
    assert (finding.count_per_step, what_for(finding)) == (2, "2 loop (4.61 kB)")


def test_an_unrolled_loop(churn: Any) -> None:
    class Loop(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = x.transpose(1, 2).contiguous().softmax(-1)
            return x

    (finding,) = churn(Loop(), X, step_bytes=60 * BYTES)
    assert (finding.count_per_step, finding.bytes_per_step) == (3, 6 * BYTES)
    assert finding.title == "Copy in an unrolled loop"
    assert "makes this copy 3 times" in finding.fix
    assert (finding.saving.predicted_pct_min, finding.saving.predicted_pct_max) == (0.0, pytest.approx(10.0))


def test_the_rounds_of_a_loop_are_those_of_one_value(churn: Any) -> None:
    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x[i].transpose(0, 1).contiguous().view(-1, 8).softmax(-1) for i in range(2)])

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Rows(), Rows(), Rows()])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x.softmax(-1)).view(2, 6, 6, 8)
            return x

    (finding,) = churn(Layers(), X)
    assert finding.title == "Copy in an unrolled loop"
    assert finding.count_per_step == 6
    assert "these are 2 copies of parts of one value" in finding.fix


def test_needed_copies_on_one_line_are_not_a_loop(churn: Any) -> None:
    class OneWritten(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y, z = [x.clone() for _ in range(2)]
            y.mul_(2)
            return y + z.t()

    for finding in churn(OneWritten(), torch.randn(6, 6)):
        assert finding.title != "Copy in an unrolled loop"
        assert "copies of parts of one value" not in finding.fix


def test_repeated_layers_are_not_a_loop(churn: Any) -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.transpose(1, 2).contiguous()

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer(), Layer()])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x * 2).softmax(-1)
            return x

    (finding,) = churn(Layers(), X)
    assert finding.title == "Explicit copy"
    assert (finding.count_per_step, finding.site.module_path) == (3, "model.layers.*")


def test_a_parameter_copied_on_every_call(churn: Any) -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.t().contiguous().t()

    (finding,) = churn(Head(), X)
    assert finding.title == "Copy that is the same on every call"
    assert "store model.weight in this layout once" in finding.fix
    assert finding.bytes_per_step == 2 * 8 * 4 * 4


def test_what_is_computed_from_parameters_alone_is_constant_in_inference_only(churn: Any) -> None:
    class Bias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(9, 8))
            self.register_buffer("index", torch.randint(0, 9, (6,)))

        def forward(self, x: Tensor) -> Tensor:
            return (x + self.table[self.index].t().reshape(-1)[:8]).softmax(-1)

    (finding,) = churn(Bias(), X)
    assert finding.title == "Copy that is the same on every call"
    assert "compute it once for inference" in finding.fix
    forward = churn(Bias(), X, train=True)[0]
    assert forward.title == "Reshape that copies"


def test_line_with_two_kinds_of_copies_names_the_removable_one(churn: Any) -> None:
    def blocks(t: Tensor) -> Tensor:
        return t.transpose(0, 1).reshape(-1)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 8))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return blocks(x), blocks(self.weight) * 2

    (finding,) = churn(Mixed(), X, step_bytes=1000 * BYTES)
    assert finding.title == "Reshape that copies"
    assert finding.count_per_step == 2
    assert "For 1 of the 2: store model.weight in this layout once" in finding.fix
    assert finding.bytes_per_step == 2 * 4 * 8 * 4
    assert sum(copy.bytes for copy in finding.copies) == 2 * BYTES + 2 * 4 * 8 * 4
    assert finding.saving.predicted_pct_max == pytest.approx(100 * 2 * 4 * 8 * 4 / (1000 * BYTES))


def test_a_copy_that_nothing_reads(churn: Any) -> None:
    class Dead(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            kept = [x.transpose(1, 2).contiguous().view(-1, 8)]
            del kept
            return x + 1

    (finding,) = churn(Dead(), X)
    assert finding.title == "Copy that nothing reads"
    assert finding.saving.predicted_pct_min == finding.saving.predicted_pct_max > 0


def test_backward_copy_is_reported_at_the_forward_line(churn: Any) -> None:
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x.transpose(1, 2).reshape(-1, 8))

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Attend(), Attend()

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).view(2, 6, 6, 8))

    forward, backward = churn(Twice(), X, train=True)
    assert (forward.count_per_step, sum(copy.bytes for copy in forward.copies)) == (2, 4 * BYTES)
    # The gradient of `view` is reshaped, and the transpose behind it does not let that be a view. The input needs no
    # gradient, so the first layer's reshape has none.
    assert backward.title == "Gradient copied in the backward"
    assert (backward.count_per_step, sum(copy.bytes for copy in backward.copies)) == (1, 2 * BYTES)
    assert forward.bytes_per_step == backward.bytes_per_step == 0  # needed as the program is written: no fix saves them
    assert backward.evidence[0].text.endswith("1 of them in the backward")
    assert "autograd makes this copy" in backward.fix
    assert backward.site.function == "forward"
    assert backward.site.line > forward.site.line


def test_the_producer_that_could_store_it(churn: Any) -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).flatten(2).transpose(1, 2).contiguous().view(-1, 8)

    (finding,) = churn(Patches(), torch.randn(2, 8, 6, 6))
    assert finding.fix.startswith("run the convolution at test_contiguous_churn.py:")
    assert "in channels-last" in finding.fix


def test_copies_around_written_out_attention_point_at_the_fused_one(churn: Any) -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q = x.transpose(1, 2).contiguous()
            weights = (q @ q.mT).softmax(-1)
            return (weights @ q).transpose(1, 2).contiguous().view(2, 32, 16)

    into, out_of = churn(Attention(), torch.randn(2, 32, 4, 4))
    assert "takes the view that is copied here as it is" in into.fix
    assert "gives its result in the order that is wanted here" in out_of.fix


def test_hidden_copies_belong_to_another_rule(churn: Any) -> None:
    class Scores(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return F.relu(q.transpose(1, 2) @ k.permute(0, 2, 3, 1))

    assert churn(Scores(), torch.randn(2, 16, 4, 8), torch.randn(2, 16, 4, 8)) == []


def test_reshapes_that_are_views_cost_nothing(churn: Any) -> None:
    class Views(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(-1, 8).contiguous().reshape(2, 36, 8).transpose(1, 2)

    assert churn(Views(), X) == []
