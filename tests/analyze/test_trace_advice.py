from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frx_graph.advice import Advice
from frx_graph.analyze.trace_advice import analyze_trace
from frx_graph.capture.captured_graph import Phase
from frx_graph.errors import EvidenceError
from frx_graph.records import Basis, CopyKind, Finding, OperandRole
from frx_graph.reports.advice.render import render
from frx_graph.reports.advice.terminal import Format

TRACES = Path(__file__).parents[1] / "data" / "traces"
RESNET = TRACES / "kineto_resnet50_two_steps.pt.trace.json.gz"
ALEXNET = TRACES / "hta_alexnet_one_forward.json.gz"
MI250 = TRACES / "hta_mi250_minitoy_train.json.gz"
ATTENTION = TRACES / "attention_block_torch215.json.gz"


def of_rule(advice: Advice, rule: str) -> list[Finding]:
    return [finding for finding in advice.findings if finding.rule == rule]


def subjects(advice: Advice) -> set[str]:
    return {refusal.subject for refusal in advice.refusals}


def test_resnet50_on_a_v100_with_shapes_and_stacks() -> None:
    advice = analyze_trace(RESNET)
    assert advice.environment.device_name == "Tesla V100-DGXS-32GB"
    assert advice.environment.torch_version == "unknown"
    assert advice.environment.threads is None
    assert advice.graphs[0].train
    (opportunity,), (reconversion,) = of_rule(advice, "FRX004"), of_rule(advice, "FRX007")
    # Three conversions a step: of the input, of the weight and, with stride 2, of the result.
    assert (opportunity.count_per_step, reconversion.count_per_step) == (2, 1)
    assert opportunity.bytes_per_step == 2 * 4 * 32 * 256 * (28 * 28 + 14 * 14)
    assert reconversion.bytes_per_step == 2 * 4 * 256 * 256 * 3 * 3
    assert str(opportunity.site) == "site-packages/torchvision/models/resnet.py:128"
    assert {copy.role for copy in opportunity.copies} == {OperandRole.INPUT, OperandRole.OUTPUT}
    assert {copy.kind for copy in advice.copies} == {CopyKind.REORDER, CopyKind.EXPLICIT}
    (loading,) = of_rule(advice, "FRX002")
    assert (loading.site.function, loading.count_per_step, loading.bytes_per_step) == (
        "to_tensor",
        2,
        2 * 2 * 3 * 224 * 224,
    )
    assert len(of_rule(advice, "FRX003")) == 1
    assert advice.totals.copies_per_step == 5
    assert subjects(advice) == {"strides"}


def test_the_backward_of_the_resnet_is_measured_beside_its_forward() -> None:
    points = analyze_trace(RESNET).graphs[0].roofline
    operators = {(point.operator, point.phase, point.count) for point in points}
    assert ("aten::cudnn_convolution", Phase.FORWARD, 1) in operators
    convolution = next(point for point in points if point.operator == "aten::cudnn_convolution")
    assert convolution.flops == 2 * 32 * 256 * 14 * 14 * 256 * 3 * 3
    assert convolution.seconds is not None
    assert 1e12 < convolution.flops / convolution.seconds < 15.7e12


def test_alexnet_on_an_a100_without_shapes_or_steps() -> None:
    advice = analyze_trace(ALEXNET, "alexnet")
    assert advice.target == "alexnet"
    (opportunity,) = of_rule(advice, "FRX004")
    assert (opportunity.count_per_step, opportunity.bytes_per_step) == (6, None)
    assert opportunity.site.function == "aten::conv2d"
    assert opportunity.saving.measured_pct == pytest.approx(100 * 140 / 5280, rel=0.01)
    assert advice.totals.copy_bytes_per_step is None
    assert of_rule(advice, "FRX005")
    assert subjects(advice) == {"steps", "bytes", "call sites"}


def test_amd_kernels_belong_to_their_operators() -> None:
    advice = analyze_trace(MI250)
    assert advice.findings == ()
    assert advice.environment.device_name == "AMD Radeon Graphics"
    assert {point.operator for point in advice.graphs[0].roofline} >= {
        "aten::addmm",
        "aten::mm",
        "aten::threshold_backward",
    }
    assert subjects(advice) == {"call sites", "ridge point"}


def test_torch_2_15_on_a_cpu_with_strides_and_call_lines() -> None:
    advice = analyze_trace(ATTENTION)
    source = (TRACES / "attention_block.py").read_text().splitlines()
    found = {
        (finding.rule, source[finding.site.line - 1].strip(), finding.site.module_path): finding
        for finding in advice.findings
    }
    contiguous = found["FRX002", "x = x.contiguous()", "Block_0"]
    assert (contiguous.count_per_step, contiguous.bytes_per_step) == (1, 2 * 4 * 2 * 64 * 16)
    assert any("from strides (1024, 1, 64) to (1024, 16, 1)" in evidence.text for evidence in contiguous.evidence)
    scores = "scores = torch.matmul(q, k.transpose(-1, -2)).softmax(-1)"
    assert ("FRX001", scores, "Block_0.Attention_0") in found
    assert ("FRX002", "q = q.contiguous()", "Block_0.Attention_0") in found
    assert {finding.basis for finding in advice.findings} == {Basis.OBSERVED}
    assert subjects(advice) == {"device kernels"}


def test_each_copy_is_claimed_once() -> None:
    for path in (RESNET, ATTENTION):
        advice = analyze_trace(path)
        claimed = sum(copy.count for finding in advice.findings for copy in finding.copies)
        assert claimed == advice.totals.copies_per_step
        assert sum(copy.bytes for copy in advice.copies) == advice.totals.copy_bytes_per_step


def operator(name: str, start: float, **fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": 5, **fields}


def write(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_trace_of_kernels_only(tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "nchwToNhwcKernel", "pid": 0, "tid": 7, "ts": 1, "dur": 30}
    advice = analyze_trace(write(tmp_path / "t.json", kernel))
    (finding,) = advice.findings
    assert (finding.rule, finding.site.function) == ("FRX004", "no operator")
    assert "operators" in subjects(advice)
    assert advice.totals.ops_scanned == 1


def test_lost_events_are_reported(tmp_path: Path) -> None:
    unlaunched = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 30}
    unfinished = operator("aten::mul", 1) | {"dur": -1}
    advice = analyze_trace(write(tmp_path / "t.json", operator("aten::add", 1), unlaunched, unfinished))
    assert {"unattributed kernels", "unfinished events"} <= subjects(advice)


@pytest.mark.parametrize("events", [[], [{"ph": "X", "cat": "browser", "name": "Paint", "ts": 1, "dur": 2}]])
def test_a_trace_of_something_else_is_refused(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    with pytest.raises(EvidenceError, match="without any operator or kernel"):
        analyze_trace(write(tmp_path / "t.json", *events))


HOSTILE = [
    "<script>alert(1)</script>",
    "[red]x[/red]",
    "\x1b[31mx",
    "=1+1",
    "a\nb\r::error::x",
    "\ud800",
    "a" * 10_000,
    "",
]


@pytest.mark.parametrize("format", list(Format))
def test_names_from_the_trace_are_data_in_every_report(tmp_path: Path, format: Format) -> None:
    events = []
    for number, text in enumerate(HOSTILE):
        start = 100 * number
        stack = {"Call stack": f"{text}.py({number}): {text}"}
        events.append(operator(f"lib::{text}", start, dur=50, args=stack))
        events.append(operator("aten::contiguous", start + 1, dur=40, args=stack))
        events.append(operator("aten::copy_", start + 2, dur=30, args=stack))
    advice = analyze_trace(write(tmp_path / "t.json", *events), model_name="<b>[red]\x1b[31m")
    assert advice.findings
    text = render(advice, format, root=tmp_path)
    assert "\x1b[31m" not in text
    assert "<script>alert" not in text
    text.encode()


CATEGORIES = ["cpu_op", "kernel", "cuda_runtime", "gpu_memcpy", "user_annotation", "python_function"]
NAMES = [
    *("aten::conv2d", "aten::cudnn_convolution", "aten::mm", "aten::add_", "ConvolutionBackward0"),
    *("aten::contiguous", "aten::copy_", "aten::permute", "triton_poi_fused_clone_0", "ProfilerStep#1"),
    *("nchwToNhwcKernel", "nhwcToNchwKernel", "vectorized_elementwise_kernel"),
    *("a.py(3): f", "Memcpy DtoD (Device -> Device)"),
]
SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=5), max_size=4)
ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "External id": st.integers(0, 4),
    "correlation": st.integers(0, 4),
    "Sequence number": st.integers(0, 3),
    "Fwd thread id": st.integers(0, 1),
    "Input Dims": SHAPES,
    "Input type": st.lists(st.sampled_from(["float", "c10::Half", "Scalar", "", "odd"]), max_size=4),
    "Input Strides": SHAPES,
    "Concrete Inputs": st.lists(st.sampled_from(["", "[1, 1]", "[0]", "False", "((("]), max_size=9),
    "bytes": st.integers(-1, 100),
    "device": st.integers(0, 1),
}
EVENT = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": st.sampled_from(CATEGORIES),
        "name": st.sampled_from(NAMES),
        "pid": st.just(1),
        "tid": st.integers(1, 2),
        "ts": st.integers(0, 60),
        "dur": st.integers(-1, 60),
        "args": st.fixed_dictionaries({}, optional=ARGUMENTS),
    }
)


@pytest.mark.usefixtures("program_froze_nothing")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENT, max_size=25))
def test_any_events_make_advice_or_an_error(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    path = write(tmp_path / "t.json", *events)
    try:
        advice = analyze_trace(path)
    except EvidenceError as error:
        assert "\n" not in str(error)
        return
    for finding in advice.findings:
        assert finding.count_per_step >= 1
        assert finding.saving.measured_pct is None or 0 <= finding.saving.measured_pct <= 100
    json.loads(render(advice, Format.JSON))


def test_nesting_of_any_depth_is_read(tmp_path: Path) -> None:
    depth = 10 * sys.getrecursionlimit()
    events = [operator("aten::contiguous", index, dur=2 * depth - 2 * index) for index in range(depth)]
    events.append(operator("aten::copy_", depth, dur=1))
    path = tmp_path / "deep.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    (finding,) = analyze_trace(path).findings
    assert finding.count_per_step == 1
