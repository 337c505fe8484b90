"""Operators that force a layout: the copies around them, by the program and by Inductor."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import metrics

from frx_graph.passes.detectors.opaque_boundary import DETECTOR
from frx_graph.records import Finding, Severity

IMAGE = torch.randn(2, 8, 6, 6)
N = IMAGE.nbytes


def register(name: str, tags: tuple[torch.Tag, ...] = (), keeps_strides: bool = True):
    @torch.library.custom_op(f"frx_test_boundary::{name}", mutates_args=(), tags=tags)
    def operator(x: Tensor) -> Tensor:
        return x.clone() if keeps_strides else x.clone(memory_format=torch.contiguous_format)

    operator.register_fake(torch.empty_like if keeps_strides else lambda x: x.new_empty(x.shape))
    return operator


untagged = register("untagged")
flexible = register("flexible", tags=(torch.Tag.flexible_layout,))
exact = register("exact", tags=(torch.Tag.needs_exact_strides,))
plain_result = register("plain_result", keeps_strides=False)


class Between(nn.Module):
    """An operator between two convolutions."""

    def __init__(self, operator, before=lambda x: x, after=lambda x: x) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.operator = operator
        self.before = before
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.after(self.operator(self.before(self.first(x)))))


class Function(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(*args)


@pytest.fixture
def found(analyse):
    def detect(model: nn.Module, *args: Tensor, step_bytes: int = 100 * N, **fields) -> list[Finding]:
        return list(DETECTOR.detect(analyse(model, *args, step_bytes=step_bytes, **fields)))

    return detect


def evidence(finding: Finding) -> str:
    return " | ".join(entry.text for entry in finding.evidence)


@pytest.mark.parametrize(("operator", "said"), [(untagged, "by default"), (exact, "by its registration")])
def test_inductor_copies_on_both_sides_of_an_untagged_operator(found, operator, said):
    (finding,) = found(Between(operator), IMAGE, inner="inductor")

    assert finding.bytes_per_step == 4 * N
    assert finding.count_per_step == 2
    assert "flexible_layout" in finding.fix
    assert f"called with needs_exact_strides, {said}" in evidence(finding)
    assert finding.copies == ()


@pytest.mark.parametrize(
    ("operator", "inner"),
    [(untagged, "eager"), (flexible, "inductor")],
    ids=["eager takes what it gets", "flexible layout"],
)
def test_no_copies_around_an_operator_that_takes_any_strides(found, operator, inner):
    assert found(Between(operator), IMAGE, inner=inner) == []


def test_a_channels_last_program_has_nothing_to_force(found):
    model = Between(untagged).to(memory_format=torch.channels_last)

    assert found(model, IMAGE.to(memory_format=torch.channels_last), inner="inductor") == []


def test_an_operator_far_from_convolutions(found):
    assert found(Function(lambda x: untagged(torch.relu(x)).sin()), IMAGE, inner="inductor") == []


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_pointwise_neighbour_takes_the_conversion_into_its_kernel(found, side):
    (finding,) = found(Between(untagged, **{side: torch.relu}), IMAGE, inner="inductor")

    assert finding.bytes_per_step == 2 * N
    assert found(Between(untagged, before=torch.relu, after=torch.relu), IMAGE, inner="inductor") == []


def test_the_programs_own_copies_next_to_the_operator(found):
    image = IMAGE.to(memory_format=torch.channels_last)

    (finding,) = found(
        Function(lambda x: untagged(torch.relu(x).contiguous()).to(memory_format=torch.channels_last)), image
    )

    assert finding.bytes_per_step == 4 * N
    assert len(finding.nodes) == 3
    assert "FRX002" in evidence(finding)
    assert finding.severity is Severity.MEDIUM


def test_a_copy_that_others_need_too_is_not_the_operators(found):
    def function(x: Tensor) -> Tensor:
        y = torch.relu(x).contiguous()
        return untagged(y) + y

    assert found(Function(function), IMAGE.to(memory_format=torch.channels_last)) == []


def test_an_operator_that_loses_channels_last(found):
    (finding,) = found(Function(lambda x: plain_result(x).relu()), IMAGE.to(memory_format=torch.channels_last))

    assert finding.bytes_per_step is None
    assert finding.severity is Severity.LOW
    assert "returns plain tensors" in finding.title
    assert "empty_like" in finding.fix


def test_plain_in_and_plain_out(found):
    assert found(Function(lambda x: plain_result(x).relu()), IMAGE) == []


def test_calls_of_one_line_are_one_finding(found):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.convs[0](x)
            for conv in self.convs[1:]:
                x = conv(untagged(x))
            return x

    (finding,) = found(Twice(), IMAGE, inner="inductor")

    assert finding.bytes_per_step == 8 * N
    assert finding.count_per_step == 4


def test_every_run_of_the_graph_counts(analyse):
    analysis = analyse(Between(untagged), IMAGE, inner="inductor")

    (finding,) = DETECTOR.detect(replace(analysis, facts=replace(analysis.facts, calls=3)))

    assert (finding.count_per_step, finding.bytes_per_step) == (6, 12 * N)


@pytest.mark.integration
def test_inductor_really_copies():
    def kernels(model: nn.Module) -> int:
        torch._dynamo.reset()
        metrics.reset()
        with (
            torch.no_grad(),
            torch._inductor.config.patch(fx_graph_cache=False),
            torch._functorch.config.patch(enable_autograd_cache=False),
        ):
            torch.compile(model.eval())(IMAGE)
        return metrics.generated_kernel_count

    assert kernels(Between(untagged)) == kernels(Between(flexible)) + 2
