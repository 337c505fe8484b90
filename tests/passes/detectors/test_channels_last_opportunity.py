"""FRX004 on measured times that the tests make up, once on real ones, and without any."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.layout import Layout
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.measure.operators.operator_measurement import LayoutTimes
from frx_graph.measure.operators.operator_timing import time_layouts
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.detectors import channels_last_harmful
from frx_graph.passes.detectors.channels_last_opportunity import DETECTOR, detect
from frx_graph.passes.layouts.layout_choice import NOISE_SHARE
from frx_graph.passes.layouts.regions import list_anchor_signatures
from frx_graph.records import Basis, Copy, CopyKind, Effort, Finding, OperandRole, Refusal, Risk, Severity

CPU = DeviceProfile("cpu", "a CPU", 10e9, {}, 64)
X = torch.randn(2, 4, 16, 16)


def times(facts: GraphFacts, seconds: Callable[[str], tuple[float, float]]) -> dict[str, LayoutTimes]:
    """Plain and channels-last seconds for every anchor, by module path."""
    return {
        node: LayoutTimes(*seconds(facts.op_by_node[node].site.module_path)) for node in list_anchor_signatures(facts)
    }


def analysis_of(
    analyse: Any, model: nn.Module, x: Tensor, seconds: Callable[[str], tuple[float, float]], **fields: Any
) -> Analysis:
    train = fields.pop("train", False)
    facts = analyse(model, x, train=train).facts
    return Analysis(
        facts, (), 1_000_000, layout_times=times(facts, seconds), **({"device": CPU, "inner": "eager"} | fields)
    )


def findings(analysis: Analysis) -> list[Finding]:
    return [found for found in detect(analysis) if isinstance(found, Finding)]


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.late = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.early(x).relu()
        return self.late(y).mean((2, 3))


def test_one_convolution_that_gains_fires(analyse: Any) -> None:
    (found,) = findings(analysis_of(analyse, nn.Conv2d(4, 4, 3), X, lambda _: (4e-3, 1e-3)))
    assert (found.rule, found.effort, found.risk) == ("FRX004", Effort.ONE_LINE, Risk.LOW)
    assert "model.to(memory_format=torch.channels_last)" in found.fix
    assert "the input `args[0]`" in found.fix
    assert found.title == "1 convolution or pooling runs plain, measured 4.00x faster in channels-last"
    assert found.copies == ()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.grow = nn.Conv2d(4, 4, 3, padding=1)
        self.shrink = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.shrink(self.grow(x).relu())


def test_every_module_of_a_long_list_is_named(analyse: Any) -> None:
    def seconds(path: str) -> tuple[float, float]:
        return (90e-3, 1e-3) if path.endswith("grow") else (1e-3, 5e-3)

    (found,) = findings(analysis_of(analyse, nn.Sequential(*(Block() for _ in range(6))), X, seconds))
    assert "convert `model.*.grow` with" in found.fix
    # Not `model.*.shrink`: what the last one makes goes to the caller.
    shrunk = ", ".join(f"`model.{block}.shrink`" for block in range(5))
    assert f"for the input `args[0]`, the results of convolution ({shrunk}) at test_channels_last" in found.fix
    assert "`.contiguous()` for the results of convolution (`model.*.grow`) at test_channels_last" in found.fix
    assert " more" not in found.fix
    assert found.modules == tuple(f"model.{block}.grow" for block in range(6))


def test_the_saving_is_net_of_the_conversions(analyse: Any) -> None:
    analysis = analysis_of(analyse, nn.Conv2d(4, 4, 3), X, lambda _: (4e-3, 1e-3))
    (found,) = findings(analysis)
    moved = 2 * (2 * 4 * 16 * 16 * 4 + 2 * 4 * 14 * 14 * 4)  # the input, and the output that the caller gets plain
    gain = 3e-3 - moved / 10e9
    assert found.rests_on_times
    assert found.saving.measured_pct is None
    assert found.saving.predicted_pct_max is not None
    assert found.saving.predicted_pct_min is not None
    assert 0 < found.saving.predicted_pct_min < found.saving.predicted_pct_max <= 100
    unsure = found.saving.predicted_pct_max - found.saving.predicted_pct_min
    assert found.saving.predicted_pct_max / unsure == pytest.approx(gain / (NOISE_SHARE * 4e-3))
    assert [e.basis for e in found.evidence if e.source == "anchor measurement"] == [Basis.OBSERVED]


def test_a_gain_that_the_conversions_eat_stays_quiet(analyse: Any) -> None:
    fast = nn.Conv2d(4, 4, 3)
    moved = 2 * (2 * 4 * 16 * 16 * 4 + 2 * 4 * 14 * 14 * 4)
    gain = 0.99 * moved / 10e9
    assert not findings(analysis_of(analyse, fast, X, lambda _: (gain, 0.0)))
    assert findings(analysis_of(analyse, fast, X, lambda _: (2 * gain, 0.0)))


def test_a_gain_within_noise_stays_quiet(analyse: Any) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1))
    quiet = 1.0 - 0.9 * NOISE_SHARE
    assert not findings(analysis_of(analyse, model, X, lambda _: (1.0, quiet)))
    assert findings(analysis_of(analyse, model, X, lambda _: (1.0, 1.0 - 1.2 * NOISE_SHARE)))


def test_a_slower_channels_last_stays_quiet(analyse: Any) -> None:
    assert not findings(analysis_of(analyse, Blocks(), X, lambda _: (1e-3, 2e-3)))


def test_a_region_that_runs_channels_last_already_stays_quiet(analyse: Any) -> None:
    x = X.to(memory_format=torch.channels_last)
    model = Blocks().to(memory_format=torch.channels_last)
    assert list(detect(analysis_of(analyse, model, x, lambda _: (4e-3, 1e-3)))) == []


def test_only_the_part_that_gains_is_to_be_converted(analyse: Any) -> None:
    (found,) = findings(
        analysis_of(analyse, Blocks(), X, lambda path: (4e-3, 1e-3) if "early" in path else (1e-3, 4e-3))
    )
    assert (found.effort, found.count_per_step) == (Effort.LOCAL, 2)
    assert "convert `model.early` with" in found.fix
    assert ".contiguous()` for the result of" in found.fix
    assert found.modules == ("model.early.0", "model.early.2")
    assert found.site.module_path == "model.early.*"


class FixedBlocks(Blocks):
    """What the fix for an early part that gains says, done."""

    def __init__(self) -> None:
        super().__init__()
        self.early.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        y = self.early(x.contiguous(memory_format=torch.channels_last)).relu()
        return self.late(y.contiguous()).mean((2, 3))


def test_partial_fix_works_as_described(analyse: Any) -> None:
    def seconds(path: str) -> tuple[float, float]:
        return (4e-3, 1e-3) if "early" in path else (1e-3, 4e-3)

    assert findings(analysis_of(analyse, Blocks(), X, seconds))
    fixed = analysis_of(analyse, FixedBlocks(), X, seconds)
    early, late = fixed.layout_groups
    assert {member.layout for member in early.operators if member.anchor} == {Layout.CHANNELS_LAST}
    assert {member.layout for member in late.operators if member.anchor} == {Layout.PLAIN}
    assert list(detect(fixed)) == []
    assert list(channels_last_harmful.detect(fixed)) == []


def test_a_holder_with_other_convolutions_is_not_named(analyse: Any) -> None:
    (found,) = findings(
        analysis_of(analyse, Blocks(), X, lambda path: (4e-3, 1e-3) if path == "model.early.0" else (1e-3, 4e-3))
    )
    assert "convert `model.early.0` with" in found.fix


class TwoRegions(nn.Module):
    """The same line of code twice, with a softmax between that wants plain images."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)])
        self.other = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x).softmax(1)
        return self.other(x)


def test_regions_that_begin_at_one_line_are_one_finding(analyse: Any) -> None:
    (found,) = findings(
        analysis_of(analyse, TwoRegions(), X, lambda path: (1e-3, 4e-3) if "other" in path else (4e-3, 1e-3))
    )
    assert found.modules == ("model.convs.0", "model.convs.1")
    assert found.site.module_path == "model.convs.*"


def test_training_counts_both_halves(analyse: Any) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1))
    (found,) = findings(analysis_of(analyse, model, X, lambda _: (4e-3, 1e-3), train=True))
    assert found.count_per_step == 4
    assert "backward" not in found.fix  # autograd converts gradients by itself


class CopiedBack(nn.Module):
    """Channels-last values, made plain between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(4, 4, 3), nn.LayerNorm(4), nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x).permute(0, 2, 3, 1).contiguous())
        return self.second(y.permute(0, 3, 1, 2).contiguous())


def test_a_copy_to_plain_is_dropped_and_not_converted(analyse: Any) -> None:
    (found,) = findings(analysis_of(analyse, CopiedBack(), X, lambda _: (4e-3, 1e-3)))
    assert "for the input `x`, and drop the `.contiguous()` at test_channels_last_opportunity.py:" in found.fix
    assert "clone" not in found.fix


def test_three_dimensional_images_get_their_own_format(analyse: Any) -> None:
    model = nn.Conv3d(4, 4, 3)
    (found,) = findings(analysis_of(analyse, model, torch.randn(2, 4, 6, 6, 6), lambda _: (4e-3, 1e-3)))
    assert "torch.channels_last_3d" in found.fix


def test_inner_copies_are_reported_as_an_overlap_and_not_claimed(analyse: Any) -> None:
    analysis = analysis_of(analyse, nn.Conv2d(4, 4, 3), X, lambda _: (4e-3, 1e-3))
    (op,) = (op for op in analysis.facts.ops if op.operator == "aten.convolution")

    def copy(role: OperandRole) -> Copy:
        return Copy(
            op.node, op.site, op.operator, CopyKind.REORDER, role, "x", 50_000, 1, op.phase, Basis.PREDICTED, "c"
        )

    copies = (copy(OperandRole.INPUT), copy(OperandRole.WEIGHT))
    (found,) = findings(Analysis(analysis.facts, copies, 1_000_000, device=CPU, layout_times=analysis.layout_times))
    moved = 2 * (2 * 4 * 16 * 16 * 4 + 2 * 4 * 14 * 14 * 4)
    assert found.copies == ()
    assert found.bytes_per_step == 50_000 - moved  # the weight's copy is FRX007's
    assert any("FRX001" in e.text and "50.0 kB" in e.text for e in found.evidence)


def test_without_copies_the_traffic_saved_is_unknown(analyse: Any) -> None:
    (found,) = findings(analysis_of(analyse, nn.Conv2d(4, 4, 3), X, lambda _: (4e-3, 1e-3)))
    assert found.bytes_per_step is None
    assert found.severity is Severity.HIGH


def test_under_inductor_on_the_cpu_everything_2d_runs_channels_last_already(analyse: Any) -> None:
    fast = analysis_of(analyse, Blocks(), X, lambda _: (4e-3, 1e-3), inner="inductor")
    assert list(detect(fast)) == []


def test_unmeasured_convolutions_are_a_refusal_and_not_silent(analyse: Any) -> None:
    facts = analyse(Blocks(), X).facts
    (refusal,) = detect(Analysis(facts, (), 1_000_000, device=CPU))
    assert isinstance(refusal, Refusal)
    assert "not timed" in refusal.reason
    assert len(refusal.nodes) == 3


def test_an_unknown_bandwidth_is_refused(analyse: Any) -> None:
    analysis = analysis_of(analyse, Blocks(), X, lambda _: (4e-3, 1e-3), device=None)
    (refusal,) = detect(analysis)
    assert isinstance(refusal, Refusal)
    assert "bandwidth" in refusal.reason


def test_network_without_convolutions_has_no_findings(analyse: Any) -> None:
    analysis = analyse(nn.Linear(16, 16), X, device=CPU)
    assert list(detect(analysis)) == []


def on_cuda(facts: GraphFacts, dtype: torch.dtype) -> GraphFacts:
    """The same graph as if it had been captured on a GPU."""
    fields = {"device": torch.device("cuda", 0), "dtype": dtype}
    values = {name: type(value)(**(vars(value) | fields)) for name, value in facts.values.items()}
    return type(facts)(
        **({k: v for k, v in vars(facts).items() if k in facts.__dataclass_fields__} | {"values": values})
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_cuda_is_predicted_with_low_confidence(analyse: Any, dtype: torch.dtype) -> None:
    facts = on_cuda(analyse(Blocks(), X).facts, dtype)
    (found,) = detect(Analysis(facts, (), 1_000_000))
    assert isinstance(found, Finding)
    assert found.confidence == confidence.ASSUMED
    assert found.saving.measured_pct is None
    assert found.saving.predicted_pct_min == 0
    assert any("not measured" in e.text for e in found.evidence)


def test_a_prediction_is_for_every_call_of_the_graph(analyse: Any) -> None:
    facts = on_cuda(analyse(Blocks(), X).facts, torch.float16)
    (once,) = findings(Analysis(facts, (), 1_000_000))
    (thrice,) = findings(Analysis(replace(facts, calls=3), (), 1_000_000))
    assert thrice.count_per_step == 3 * once.count_per_step
    assert once.saving.predicted_pct_max is not None
    assert thrice.saving.predicted_pct_max == pytest.approx(3 * once.saving.predicted_pct_max)
    assert once.evidence != thrice.evidence


def test_fp32_on_cuda_is_not_predicted(analyse: Any) -> None:
    facts = on_cuda(analyse(Blocks(), X).facts, torch.float32)
    (refusal,) = detect(Analysis(facts, (), 1_000_000))
    assert isinstance(refusal, Refusal)


def test_the_rule_agrees_with_what_the_probe_measures(analyse: Any) -> None:
    model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))
    facts = analyse(model, torch.randn(1, 16, 28, 28)).facts
    signatures = list_anchor_signatures(facts)
    measured = time_layouts(signatures.values(), budget_s=0.005)
    assert set(measured) == set(signatures.values())
    analysis = Analysis(
        facts, (), 1_000_000, device=CPU, layout_times={node: measured[s] for node, s in signatures.items()}
    )
    assert not [r for r in detect(analysis) if isinstance(r, Refusal)]
    for found in findings(analysis):
        changed = [analysis.layout_times[node].gain_seconds or 0.0 for node in found.nodes]
        assert sum(changed) > 0
    worth_it = [c for c in analysis.layout_changes if c.target is Layout.CHANNELS_LAST and c.exceeds_noise]
    assert bool(findings(analysis)) == bool(worth_it)


def test_the_detector_is_registered_under_its_name() -> None:
    assert (DETECTOR.rule, DETECTOR.name) == ("FRX004", "channels_last_opportunity")
