"""FRX006 on programs that Dynamo really compiles again."""

import linecache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frx_graph.capture.captured_graph import Recompile
from frx_graph.passes.analysis import Analysis, CompileEvents
from frx_graph.passes.detectors.stride_instability import DETECTOR, detect
from frx_graph.records import Basis, Effort, Finding, Risk, Severity

IMAGE = torch.randn(2, 8, 16, 16)
CHANNELS_LAST = IMAGE.to(memory_format=torch.channels_last)


def double(x: Tensor) -> Tensor:
    return x * 2


def findings(analyses: list[Analysis]) -> list[Finding]:
    return [found for analysis in analyses for found in detect(analysis) if isinstance(found, Finding)]


def test_two_layouts_of_one_shape_fire(recompile: Any) -> None:
    (found,) = findings(recompile(double, (IMAGE,), (CHANNELS_LAST,)))
    assert (found.rule, found.severity, found.basis) == ("FRX006", Severity.MEDIUM, Basis.OBSERVED)
    assert (found.effort, found.risk, found.count_per_step) == (Effort.ONE_LINE, Risk.LOW, 1)
    assert found.title == "The strides of `x` changed between calls: compiled again once"
    assert "dimension 1: expected 256 (as in plain), got 1 (as in channels_last)" in found.evidence[0].text
    assert "`x = x.contiguous()`" in found.fix
    assert "memory_format=torch.channels_last" in found.fix
    assert '"pin_strides": True' in found.fix
    assert found.copies == ()


def test_the_line_that_reads_the_input_is_named(recompile: Any) -> None:
    (found,) = findings(recompile(double, (IMAGE,), (CHANNELS_LAST,)))
    assert (found.site.file, found.site.function) == (__file__, "double")


def test_a_module_that_torch_alone_calls_is_named_by_its_path_and_by_the_line_of_the_call(recompile: Any) -> None:
    (found,) = findings(recompile(nn.Sequential(nn.ReLU()), (IMAGE,), (CHANNELS_LAST,)))
    assert found.site.module_path == "model.0"
    called = linecache.getline(found.site.file, found.site.line)
    assert "compiled(" in called or "model(" in called, called


@pytest.mark.parametrize(
    "shapes", [((2, 8), (4, 8), (8, 8)), ((2, 8), (2, 16)), ((4, 4), (4, 8), (2, 8), (1, 8))], ids=str
)
def test_shapes_alone_stay_quiet(recompile: Any, shapes: tuple[tuple[int, int], ...]) -> None:
    analyses = recompile(double, *((torch.randn(shape),) for shape in shapes))
    assert any(analysis.events.recompiles for analysis in analyses)
    assert findings(analyses) == []


def test_the_same_strides_stay_quiet(recompile: Any) -> None:
    assert findings(recompile(double, (IMAGE,), (IMAGE.clone(),))) == []


def test_a_slice_of_a_wider_tensor_is_not_called_a_layout(recompile: Any) -> None:
    wide = torch.randn(8, 32)
    (found,) = findings(recompile(double, (wide[:, :16],), (torch.randn(8, 33)[:, :16],)))
    assert "expected 32, got 33" in found.evidence[0].text
    assert "memory_format" not in found.fix


def test_each_input_is_one_finding(recompile: Any) -> None:
    def scaled(d: dict[str, Tensor], y: Tensor) -> Tensor:
        return d["a"] * y

    turned = IMAGE.transpose(2, 3)
    found = findings(
        recompile(scaled, ({"a": IMAGE}, IMAGE.clone()), ({"a": IMAGE}, turned), ({"a": turned.clone()}, turned))
    )
    assert sorted(f.title.split("`")[1] for f in found) == ["d['a']", "y"]
    assert any("`x = x.contiguous()`" in f.fix and "for `d['a']`" in f.fix for f in found)


def test_a_parameter_is_to_be_converted_before_compiling(recompile: Any) -> None:
    model = nn.Linear(4, 4)

    def turn_the_weight(compiled: Any) -> None:
        model.weight.data = model.weight.data.t()
        compiled(torch.randn(2, 4))

    (found,) = findings(recompile(model, (torch.randn(2, 4),), turn_the_weight))
    assert "before compiling" in found.fix
    assert "weight" in found.fix


def test_only_the_recompiled_frame_reports_the_instability(recompile: Any) -> None:
    def broken(x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y.sum() * 2

    analyses = recompile(broken, (IMAGE,), (CHANNELS_LAST,))
    assert len(analyses) == 2
    for analysis in analyses:
        for found in detect(analysis):
            assert isinstance(found, Finding)
    assert sorted(f.title.split("`")[1] for f in findings(analyses)) == ["x", "y"]


def with_reasons(analysis: Analysis, *reasons: str, skips: int = 0) -> Analysis:
    frame = analysis.facts.graph_id.rpartition("/")[0]
    recompiles = tuple(Recompile(f"{frame}/{i + 1}", reason) for i, reason in enumerate(reasons))
    return Analysis(analysis.facts, (), 1, events=CompileEvents(recompiles=recompiles, cudagraph_skips=skips))


def test_at_the_limit_of_versions_it_is_severe(recompile: Any) -> None:
    (analysis,) = recompile(double, (IMAGE,))
    reason = "0/0: tensor 'x' stride mismatch at index 1. expected 256, actual 1"
    (below,) = detect(with_reasons(analysis, *[reason] * 6))
    (at,) = detect(with_reasons(analysis, *[reason] * 7))
    assert isinstance(below, Finding)
    assert isinstance(at, Finding)
    assert (below.severity, at.severity) == (Severity.MEDIUM, Severity.HIGH)
    assert (at.count_per_step, len(at.evidence)) == (7, 2)


def test_skipped_cuda_graphs_are_reported_only_as_extra_evidence(recompile: Any) -> None:
    (analysis,) = recompile(double, (IMAGE,))
    (found,) = detect(with_reasons(analysis, "0/0: x.stride()[1] == 256", skips=3))
    assert isinstance(found, Finding)
    assert any("CUDA graphs were skipped 3 times" in e.text for e in found.evidence)
    assert list(detect(with_reasons(analysis, skips=3))) == []


def test_the_detector_is_registered_under_its_name() -> None:
    assert (DETECTOR.rule, DETECTOR.name) == ("FRX006", "stride_instability")
