"""FRX015 on measured times that the tests make up."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.measure.operators.operator_measurement import LayoutTimes
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.detectors import channels_last_opportunity
from frx_graph.passes.detectors.channels_last_harmful import DETECTOR, detect
from frx_graph.passes.layouts.layout_choice import NOISE_SHARE
from frx_graph.passes.layouts.regions import list_anchor_signatures
from frx_graph.records import Effort, Finding, Refusal, Risk

CPU = DeviceProfile("cpu", "a CPU", 10e9, {}, 64)
CHANNELS_LAST = torch.channels_last
X = torch.randn(1, 4, 14, 14)


class Stages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.late = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.early(x)
        return self.late(y).mean((2, 3))


def analysis_of(
    analyse: Any, model: nn.Module, x: Tensor, seconds: Callable[[str], tuple[float, float]], **fields: Any
) -> Analysis:
    facts = analyse(model, x, train=fields.pop("train", False)).facts
    measured = {
        node: LayoutTimes(*seconds(facts.op_by_node[node].site.module_path)) for node in list_anchor_signatures(facts)
    }
    return Analysis(facts, (), 1_000_000, layout_times=measured, **({"device": CPU} | fields))


def channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=CHANNELS_LAST)  # type: ignore[call-overload, no-any-return]


def late_is_faster_plain(path: str) -> tuple[float, float]:
    return (1e-3, 4e-3) if "late" in path else (4e-3, 1e-3)


def test_one_convolution_that_loses_fires(analyse: Any) -> None:
    x = X.to(memory_format=CHANNELS_LAST)
    (found,) = detect(analysis_of(analyse, channels_last(nn.Conv2d(4, 4, 3)), x, lambda _: (1e-3, 4e-3)))
    assert isinstance(found, Finding)
    assert (found.rule, found.effort, found.risk) == ("FRX015", Effort.ONE_LINE, Risk.LOW)
    assert "leave out `.to(memory_format=torch.channels_last)`" in found.fix
    assert "faster plain" in found.title
    assert found.copies == ()


def test_times_that_do_not_agree_with_themselves_claim_nothing(analyse: Any) -> None:
    x = X.to(memory_format=CHANNELS_LAST)
    analysis = analysis_of(analyse, channels_last(nn.Conv2d(4, 4, 3)), x, lambda _: (1e-3, 4e-3))
    unsteady = {node: replace(times, steady=False) for node, times in analysis.layout_times.items()}
    assert list(detect(replace(analysis, layout_times=unsteady))) == []


def test_times_taken_under_load_claim_little(analyse: Any) -> None:
    x = X.to(memory_format=CHANNELS_LAST)
    (found,) = detect(analysis_of(analyse, channels_last(nn.Conv2d(4, 4, 3)), x, lambda _: (1e-3, 4e-3), loaded=True))
    assert isinstance(found, Finding)
    assert found.confidence == confidence.LOADED
    assert "other programs used the processors" in found.evidence[-1].text


def test_a_channels_last_weight_alone_is_enough(analyse: Any) -> None:
    model = channels_last(nn.Sequential(nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1)))
    assert list(detect(analysis_of(analyse, model, X, lambda _: (1e-3, 4e-3))))


def test_a_plain_region_stays_quiet_however_slow_channels_last_is(analyse: Any) -> None:
    assert list(detect(analysis_of(analyse, Stages(), X, lambda _: (1e-3, 9e-3)))) == []


def test_a_loss_within_noise_stays_quiet(analyse: Any) -> None:
    x = X.to(memory_format=CHANNELS_LAST)
    model = channels_last(nn.Sequential(nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1)))
    nearly = (1.0 - 0.9 * NOISE_SHARE, 1.0)
    clearly = (1.0 - 1.2 * NOISE_SHARE, 1.0)
    assert not list(detect(analysis_of(analyse, model, x, lambda _: nearly)))
    assert list(detect(analysis_of(analyse, model, x, lambda _: clearly)))


def test_only_the_stage_that_loses_is_named(analyse: Any) -> None:
    x = X.to(memory_format=CHANNELS_LAST)
    (found,) = detect(analysis_of(analyse, channels_last(Stages()), x, late_is_faster_plain))
    assert isinstance(found, Finding)
    assert found.effort is Effort.LOCAL
    assert "keep `model.late` plain" in found.fix
    assert "`.contiguous()` for the result of max_pool2d_with_indices (`model.early.2`)" in found.fix
    assert found.modules == ("model.late.0", "model.late.2")


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_inductors_forced_channels_last_is_found_though_the_program_is_plain(analyse: Any, train: bool) -> None:
    (found,) = detect(analysis_of(analyse, Stages(), X, late_is_faster_plain, inner="inductor", train=train))
    assert isinstance(found, Finding)
    assert '{"layout_optimization": False}' in found.fix
    assert "convert the modules that are not named here" in found.fix
    assert "contiguous_format" not in found.fix  # the program is plain already
    assert all("late" in path for path in found.modules)


def test_under_inductor_a_program_in_channels_last_needs_both(analyse: Any) -> None:
    x = X.to(memory_format=CHANNELS_LAST)
    (found,) = detect(analysis_of(analyse, channels_last(Stages()), x, lambda _: (1e-3, 4e-3), inner="inductor"))
    assert isinstance(found, Finding)
    assert "layout_optimization" in found.fix
    assert "leave out `.to(memory_format=torch.channels_last)`" in found.fix


def test_a_plain_program_in_eager_is_not_inductors_business(analyse: Any) -> None:
    assert list(detect(analysis_of(analyse, Stages(), X, late_is_faster_plain, inner="eager"))) == []


def test_the_two_rules_never_name_the_same_operator(analyse: Any) -> None:
    for inner in ("eager", "inductor"):
        analysis = analysis_of(analyse, Stages(), X, late_is_faster_plain, inner=inner)
        harmful = {n for r in detect(analysis) for n in r.nodes}
        opportunity = {n for r in channels_last_opportunity.detect(analysis) for n in r.nodes}
        assert not harmful & opportunity


def test_unmeasured_convolutions_are_a_refusal_and_not_silent(analyse: Any) -> None:
    facts = analyse(Stages(), X).facts
    (refusal,) = detect(Analysis(facts, (), 1_000_000, inner="inductor", device=CPU))
    assert isinstance(refusal, Refusal)
    assert "3 convolutions run channels-last" in refusal.reason


def test_the_detector_is_registered_under_its_name() -> None:
    assert (DETECTOR.rule, DETECTOR.name) == ("FRX015", "channels_last_harmful")
