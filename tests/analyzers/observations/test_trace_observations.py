"""Traces: kernels are led through correlation ids to their operators, and what ran without layout work is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_traces import RunTrace
from run_traces import Tensor as Seen
from torch import Tensor, nn

from frx_graph.analyzers.observations.corroboration import corroborate_findings
from frx_graph.analyzers.observations.observation import ObservedCall, RunFile, RunSetting, Work
from frx_graph.analyzers.observations.trace_observations import OUTSIDE, observe_trace
from frx_graph.analyzers.trace.analysis import prepare_trace
from frx_graph.analyzers.trace.findings import group_copies
from frx_graph.analyzers.trace.kernel_names import CONVERSIONS as CONVERSION_KERNELS
from frx_graph.analyzers.trace.kernel_names import classify_kernel
from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.dtype import DType
from frx_graph.evidence.measurement import Measurement, Provenance
from frx_graph.evidence.trace.events import Operand
from frx_graph.evidence.trace.torch_trace import read_torch_trace
from frx_graph.passes.confidence import CONFIRMED, INFERRED
from frx_graph.records import CopyKind, Effort, Finding, OperandRole, Risk, Saving, Severity

TRACES = Path(__file__).parents[2] / "data" / "traces"

TO_LAST, FROM_LAST = "void cudnn::ops::nchwToNhwcKernel<float>(int)", "void cudnn::ops::nhwcToNchwKernel<float>(int)"
GEMM = "volta_sgemm_64x64_nt"
IMAGE: Seen = ((8, 64, 32, 32), (65536, 1024, 32, 1))
WEIGHT: Seen = ((64, 64, 3, 3), (576, 9, 3, 1))


def read(trace: RunTrace, tmp_path: Path) -> RunFile:
    return observe_trace(prepare_trace(read_torch_trace(trace.write(tmp_path / "run.json"))))


def convolve(trace: RunTrace, start: float, *, converts: bool) -> int:
    """A convolution from `start` for 90 us; the first conversion's correlation id."""
    number = 0
    trace.op("aten::conv2d", start, start + 90, IMAGE, WEIGHT)
    trace.op("aten::convolution", start + 1, start + 89, IMAGE, WEIGHT)
    trace.op("aten::cudnn_convolution", start + 2, start + 88, IMAGE, WEIGHT)
    if converts:
        number = trace.kernel(TO_LAST, start + 3, start + 200, start + 220)
        trace.kernel(TO_LAST, start + 5, start + 220, start + 225)
    trace.kernel(GEMM, start + 8, start + 230, start + 300)
    return number


def test_conversions_are_reported_per_step_with_their_operators(tmp_path: Path) -> None:
    trace = RunTrace()
    for number in range(2):
        trace.step(number, 1000 * number, 1000 * number + 990)
    first = convolve(trace, 10, converts=True)
    convolve(trace, 1010, converts=True)
    file = read(trace, tmp_path)
    assert (file.source, file.setting) == (str(tmp_path / "run.json"), RunSetting("cuda", compiled=False))
    image, weight = file.observations
    assert (image.work, image.kernels, image.count, image.steps) == (Work.CONVERSION, (TO_LAST,), 2, 2)
    assert [call.operator for call in image.calls] == ["aten::cudnn_convolution", "aten::convolution", "aten::conv2d"]
    operands = (Operand(IMAGE[0], DType.FLOAT32, IMAGE[1]), Operand(WEIGHT[0], DType.FLOAT32, WEIGHT[1]))
    assert image.calls[1] == ObservedCall("aten::convolution", operands)
    assert (image.roles, weight.roles) == (frozenset({OperandRole.INPUT}), frozenset({OperandRole.WEIGHT}))
    assert (image.phase, image.where) == (Phase.FORWARD, f"correlation {first}")
    assert (image.seconds, image.bytes) == (pytest.approx(40e-6), 2 * 2 * 4 * 8 * 64 * 32 * 32)
    subject, at = f"{TO_LAST} under aten::cudnn_convolution", f"correlation {first}"
    assert image.measurements[1] == Measurement(
        "time_per_step", pytest.approx(20e-6), "s", subject, Provenance(file.source, None, at)
    )
    assert image.measurements[0].value == 1.0


def test_each_kernel_is_in_one_sighting(tmp_path: Path) -> None:
    trace = RunTrace()
    for number in range(5):
        convolve(trace, 1000 * number, converts=True)
    trace.kernel(FROM_LAST, 9000, 9100, 9110)
    file = read(trace, tmp_path)
    assert sum(observation.count for observation in file.observations) == 11
    orphan = file.observations[-1]
    assert (orphan.calls, orphan.roles) == ((ObservedCall(OUTSIDE),), frozenset({OperandRole.OUTPUT}))


def test_a_convolution_that_converts_nothing_is_quiet(tmp_path: Path) -> None:
    trace = RunTrace()
    convolve(trace, 0, converts=False)
    convolve(trace, 1000, converts=False)
    file = read(trace, tmp_path)
    quiet = {call.call.operator: call for call in file.quiet}
    assert quiet["aten::convolution"].count == 2
    assert CopyKind.REORDER in file.shows
    assert file.observations == ()


def test_call_that_converted_once_is_not_quiet(tmp_path: Path) -> None:
    trace = RunTrace()
    convolve(trace, 0, converts=False)
    convolve(trace, 1000, converts=True)
    assert read(trace, tmp_path).quiet == ()


def test_an_operator_whose_kernels_are_not_in_the_trace_is_not_quiet(tmp_path: Path) -> None:
    trace = RunTrace()
    trace.op("aten::convolution", 0, 90, IMAGE, WEIGHT)
    trace.op("aten::relu_", 100, 110, IMAGE)
    trace.kernel(GEMM, 105, 200, 210)
    assert [one.call.operator for one in read(trace, tmp_path).quiet] == ["aten::relu_"]


def test_on_a_cpu_copies_are_operators_and_conversions_are_not_seen(tmp_path: Path) -> None:
    trace = RunTrace()
    strided, dense = ((4, 8, 16), (128, 1, 8)), ((4, 8, 16), (128, 16, 1))
    trace.op("aten::contiguous", 0, 50, strided, **{"External id": 3})
    trace.op("aten::clone", 1, 49, strided)
    trace.op("aten::copy_", 2, 40, dense, strided)
    trace.op("aten::convolution", 100, 200, IMAGE, WEIGHT)
    file = read(trace, tmp_path)
    assert file.setting == RunSetting("cpu", compiled=False)
    assert CopyKind.REORDER not in file.shows
    (copy,) = file.observations
    assert (copy.work, copy.kinds, copy.kernels) == (Work.COPY, frozenset({CopyKind.EXPLICIT}), ())
    assert (copy.copied, copy.where) == (Operand((4, 8, 16), DType.FLOAT32, (128, 1, 8)), "External id 3")
    assert copy.seconds == pytest.approx(50e-6)
    assert [one.call.operator for one in file.quiet] == ["aten::convolution"]


def test_lines_are_reported_if_stacks_were_recorded(tmp_path: Path) -> None:
    trace = RunTrace()
    trace.frame("net.py(10): forward", 0, 100, "main.py:3")
    trace.frame("torch/nn/modules/conv.py(5): forward", 1, 99, "net.py:12")
    convolve(trace, 5, converts=True)
    (first, _) = read(trace, tmp_path).observations
    assert first.site is not None
    assert (first.site.file, first.site.line, first.site.function) == ("net.py", 12, "forward")


def test_without_stacks_there_is_no_line(tmp_path: Path) -> None:
    trace = RunTrace()
    convolve(trace, 0, converts=True)
    assert all(observation.site is None for observation in read(trace, tmp_path).observations)


def test_inductors_copies_are_what_is_left_of_clones(tmp_path: Path) -> None:
    trace = RunTrace()
    trace.op("triton_poi_fused_clone_0", 0, 20)
    trace.kernel("triton_poi_fused_clone_0", 5, 30, 40)
    file = read(trace, tmp_path)
    assert file.setting == RunSetting("cuda", compiled=True)
    (copy,) = file.observations
    assert copy.calls == (ObservedCall("aten::clone"),)
    assert copy.kinds == frozenset({CopyKind.EXPLICIT, CopyKind.RESHAPE, CopyKind.OPERATOR})


@pytest.mark.parametrize("name", ["kineto_resnet50_two_steps.pt.trace.json.gz", "hta_alexnet_one_forward.json.gz"])
def test_each_conversion_of_a_real_run_is_in_one_finding_and_in_one_sighting(name: str) -> None:
    analysis = prepare_trace(read_torch_trace(TRACES / name))
    conversions = [
        index for index, one in enumerate(analysis.tree.activities) if classify_kernel(one.name) in CONVERSION_KERNELS
    ]
    assert len(conversions) == 6
    led = Counter(index for group in group_copies(analysis) for copy in group.copies for index in copy.activities)
    assert [led[index] for index in conversions] == [1] * 6
    seen = [one for one in observe_trace(analysis).observations if one.work is Work.CONVERSION]
    assert sum(one.count for one in seen) == 6
    assert all(one.calls and one.calls[-1].operator == "aten::conv2d" for one in seen)


def test_a_real_run_confirms_the_convolution_that_it_converts_for(analyse: Any, copy_at: Any) -> None:
    """ResNet-50 on a V100 in single precision: one of its convolutions converts, a strided one of 256 channels."""

    class Bottleneck(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv2 = nn.Conv2d(256, 256, 3, stride=2, padding=1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv2(x)

    facts = analyse(Bottleneck(), torch.randn(32, 256, 28, 28)).facts
    (op,) = (op for op in facts.ops if op.operator == "aten.convolution")
    site = CallSite("/venv/torchvision/models/resnet.py", 131, "forward", "model.layer3.0.conv2")
    findings = []
    for rule, roles in (("FRX001", (OperandRole.INPUT, OperandRole.OUTPUT)), ("FRX007", (OperandRole.WEIGHT,))):
        names = {OperandRole.INPUT: op.inputs[0], OperandRole.WEIGHT: op.inputs[1], OperandRole.OUTPUT: op.outputs[0]}
        copies = [copy_at(facts, op.node, names[role], kind=CopyKind.REORDER, role=role) for role in roles]
        findings.append(
            Finding(
                rule=rule,
                title="a finding",
                severity=Severity.LOW,
                site=site,
                nodes=(op.node,),
                count_per_step=len(roles),
                bytes_per_step=None,
                saving=Saving(),
                effort=Effort.ONE_LINE,
                risk=Risk.LOW,
                fix="a fix",
                confidence=INFERRED,
                copies=tuple(replace(copy, site=site) for copy in copies),
                graph_id=facts.graph_id,
            )
        )
    file = observe_trace(prepare_trace(read_torch_trace(TRACES / "kineto_resnet50_two_steps.pt.trace.json.gz")))
    setting = RunSetting("cuda", compiled=False)
    (images, weights), refusals = corroborate_findings(findings, {facts.graph_id: facts}, [file], setting)
    assert (images.confidence, weights.confidence) == (CONFIRMED, CONFIRMED)
    assert [fact.text for fact in images.evidence][-1] == "seen 2× a step, predicted 2×"
    assert [fact.text for fact in weights.evidence][-1] == "seen 1× a step, predicted 1×"
    assert not any("nchw" in refusal.subject.lower() for refusal in refusals)
