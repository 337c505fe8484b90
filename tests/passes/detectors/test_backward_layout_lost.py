"""FRX008: gradients that arrive plain where the forward was channels-last, and those that do not."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frx_graph.capture.captured_graph import Phase
from frx_graph.passes import confidence
from frx_graph.passes.detectors.backward_layout_lost import DETECTOR, detect
from frx_graph.records import Basis, Copy, CopyKind, Effort, Finding, OperandRole, Severity

CHANNELS_LAST = torch.channels_last
GRADIENT = 2 * 8 * 8 * 8 * 4
"""Bytes of the gradient of `conv(4, 8)` on 8x8 images, batch 2."""


def image() -> Tensor:
    return torch.randn(2, 4, 8, 8).to(memory_format=CHANNELS_LAST)


def conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


def found_in(analyse: Any, model: nn.Module, x: Tensor | None = None, **fields: Any) -> list[Finding]:
    model = model.to(memory_format=CHANNELS_LAST)  # type: ignore[call-overload]
    fields = {"train": True} | fields
    return list(detect(analyse(model, image() if x is None else x, **fields)))


def flattened(*between: nn.Module, features: int = 8 * 64) -> nn.Module:
    return nn.Sequential(conv(4, 8), *between, nn.Flatten(), nn.Linear(features, 3))


class Two(nn.Module):
    """Two convolutions read one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = conv(4, 8), conv(4, 8), nn.Linear(8 * 64, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x) + self.right(x)
        return self.head(y.flatten(1))


def test_a_flatten_behind_a_convolution_fires(analyse: Any) -> None:
    (found,) = found_in(analyse, flattened())
    assert (found.rule, found.effort, found.count_per_step) == ("FRX008", Effort.ONE_LINE, 1)
    assert found.bytes_per_step == 2 * GRADIENT
    assert "at `view`" in found.evidence[0].text
    assert "register_hook" in found.fix
    assert found.copies == ()


def test_one_reader_alone_is_sure_to_save_nothing(analyse: Any) -> None:
    (found,) = found_in(analyse, flattened())
    assert (found.saving.predicted_pct_min, found.severity) == (0.0, Severity.INFO)


def test_two_readers_save_one_conversion(analyse: Any) -> None:
    (found,) = found_in(analyse, Two(), step_bytes=100_000)
    assert (found.count_per_step, found.bytes_per_step) == (2, 4 * GRADIENT)
    assert found.saving.predicted_pct_min == pytest.approx(100 * 2 * GRADIENT / 100_000)
    assert found.saving.predicted_pct_max == pytest.approx(100 * 4 * GRADIENT / 100_000)
    assert found.modules == ("model.right", "model.left")
    assert found.site.file == __file__
    assert found.site.module_path == "model"


def test_a_global_pooling_hands_back_an_expanded_gradient(analyse: Any) -> None:
    (found,) = found_in(analyse, nn.Sequential(conv(4, 8), nn.AdaptiveAvgPool2d(1)))
    assert "at `expand`" in found.evidence[0].text
    assert "1 convolution runs channels-last" in found.title


def test_a_norm_brings_the_gradient_of_a_pooling_back(analyse: Any) -> None:
    """Its kernel makes a channels-last gradient of a plain one, though its fake does not (torch 2.15)."""
    model = nn.Sequential(conv(4, 8), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1))
    assert found_in(analyse, model) == []


@pytest.mark.parametrize(
    "model",
    [
        flattened(nn.ReLU()),
        flattened(nn.MaxPool2d(2), features=8 * 16),
        nn.Sequential(conv(4, 8), conv(8, 8)),
        nn.Sequential(conv(4, 8), nn.ReflectionPad2d(1), nn.Conv2d(8, 8, 3)),
        nn.Sequential(conv(4, 8), nn.GLU(1), conv(4, 4)),
    ],
    ids=["relu", "max pool", "output", "reflection pad", "glu"],
)
def test_what_keeps_or_restores_the_layout_stays_quiet(analyse: Any, model: nn.Module) -> None:
    assert found_in(analyse, model) == []


def test_a_plain_forward_has_nothing_to_lose(analyse: Any) -> None:
    assert list(detect(analyse(flattened(), image().contiguous(), train=True))) == []


def test_inference_has_no_backward(analyse: Any) -> None:
    assert found_in(analyse, flattened(), train=False) == []


def test_inductor_that_forces_the_backwards_layout_stays_quiet(analyse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "frx_graph.passes.detectors.backward_layout_lost.is_channels_last_forced"
    monkeypatch.setattr(module, lambda _facts, phase, inner: (phase, inner) == (Phase.BACKWARD, "inductor"))
    assert found_in(analyse, flattened(), inner="inductor") == []
    assert found_in(analyse, flattened(), inner="eager") != []


def test_known_copies_count_instead_of_estimates(analyse: Any) -> None:
    model = flattened().to(memory_format=CHANNELS_LAST)  # type: ignore[call-overload]
    facts = analyse(model, image(), train=True).facts
    (op,) = (op for op in facts.ops if op.operator == "aten.convolution_backward")
    copy = Copy(
        op.node,
        op.site,
        op.operator,
        CopyKind.OPERATOR,
        OperandRole.INPUT,
        op.inputs[0],
        12_345,
        1,
        op.phase,
        Basis.PREDICTED,
        "c",
    )
    analysis = analyse(model, image(), train=True, copies=(copy,))
    (found,) = detect(analysis)
    assert isinstance(found, Finding)
    assert (found.bytes_per_step, found.confidence) == (12_345, confidence.INFERRED)
    (thrice,) = detect(replace(analysis, facts=replace(analysis.facts, calls=3)))
    assert isinstance(thrice, Finding)
    assert (thrice.bytes_per_step, thrice.count_per_step) == (12_345, 3)  # a copy's bytes are those of all calls


def test_an_estimate_is_made_for_every_call(analyse: Any) -> None:
    analysis = analyse(flattened().to(memory_format=CHANNELS_LAST), image(), train=True)  # type: ignore[call-overload]
    (found,) = detect(replace(analysis, facts=replace(analysis.facts, calls=3)))
    assert isinstance(found, Finding)
    assert (found.bytes_per_step, found.count_per_step) == (3 * 2 * GRADIENT, 3)


def test_where_the_origin_is_larger_the_hook_belongs_on_the_convolution(analyse: Any) -> None:
    model = flattened(nn.Upsample(scale_factor=2), features=8 * 256)
    (found,) = found_in(analyse, model)
    assert "on the output y of `model.0`" in found.fix


@pytest.mark.parametrize(
    ("model", "lost"),
    [(flattened(), True), (flattened(nn.SiLU()), True), (flattened(nn.ReLU()), False), (Two(), True)],
    ids=["flatten", "silu", "relu", "two"],
)
def test_predicted_gradient_layout_matches_a_real_backward(analyse: Any, model: nn.Module, lost: bool) -> None:
    model = model.to(memory_format=CHANNELS_LAST)  # type: ignore[call-overload]
    assert bool(list(detect(analyse(model, image(), train=True)))) is lost
    arrived = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_full_backward_pre_hook(lambda _m, gradients: arrived.append(gradients[0]))
    model(image().requires_grad_()).sum().backward()
    assert arrived
    assert all(g.is_contiguous(memory_format=CHANNELS_LAST) is not lost for g in arrived)


def test_fix_works_as_described(analyse: Any) -> None:
    class Hooked(Two):
        def forward(self, x: Tensor) -> Tensor:
            y = self.left(x) + self.right(x)
            y.register_hook(lambda g: g.contiguous(memory_format=CHANNELS_LAST))
            return self.head(y.flatten(1))

    model = Hooked().to(memory_format=CHANNELS_LAST)  # type: ignore[call-overload]
    arrived = []
    for module in (model.left, model.right):
        module.register_full_backward_pre_hook(lambda _m, gradients: arrived.append(gradients[0]))
    model(image().requires_grad_()).sum().backward()
    assert len(arrived) == 2
    assert all(g.is_contiguous(memory_format=CHANNELS_LAST) for g in arrived)


def test_the_detector_is_registered_under_its_name() -> None:
    assert (DETECTOR.rule, DETECTOR.name) == ("FRX008", "backward_layout_lost")
