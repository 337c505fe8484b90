from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from frx_graph.analyzers.trace.analysis import prepare_trace
from frx_graph.analyzers.trace.findings import find_layout_copies, record_copies
from frx_graph.analyzers.trace.permutes import find_permutes
from frx_graph.evidence.trace.events import HostThread, Operand
from frx_graph.records import Basis, CopyKind, Effort, Finding, OperandRole, Severity

MAIN, OTHER = HostThread("1", "1"), HostThread("1", "2")
TO_LAST = "void nchwToNhwcKernel<float>(int)"
COMPUTE = "volta_sgemm_64x64_nt"
Tensor = Callable[..., Operand]


def findings_of(sketch: Any) -> list[Finding]:
    return find_layout_copies(prepare_trace(sketch.build()))


def draw_step(sketch: Any, number: int, start: int, image: Operand, weight: Operand) -> None:
    """A convolution that converts for 30 of the 100 microseconds that the device is busy."""
    sketch.step(number, start, start + 1000)
    sketch.op("aten::conv2d", start + 10, start + 100, image, weight)
    sketch.op("aten::cudnn_convolution", start + 20, start + 90, image, weight)
    sketch.kernel(TO_LAST, start + 30, start + 200, 20)
    sketch.kernel(TO_LAST, start + 31, start + 220, 10)
    sketch.kernel(COMPUTE, start + 32, start + 230, 70)


def test_conversions_are_per_step_with_their_share_of_busy_time(sketch: Any, make_tensor: Tensor) -> None:
    image, weight = make_tensor(8, 64, 32, 32), make_tensor(64, 64, 3, 3)
    for number in range(3):
        draw_step(sketch, number, 1000 * number, image, weight)
    opportunity, reconversion = findings_of(sketch)
    assert (opportunity.rule, opportunity.count_per_step, opportunity.bytes_per_step) == (
        "FRX004",
        1,
        2 * 4 * 8 * 64 * 1024,
    )
    assert (reconversion.rule, reconversion.count_per_step, reconversion.bytes_per_step) == (
        "FRX007",
        1,
        2 * 4 * 64 * 64 * 9,
    )
    assert opportunity.saving.measured_pct == pytest.approx(20.0)
    assert reconversion.saving.measured_pct == pytest.approx(10.0)
    assert opportunity.severity is Severity.HIGH
    assert opportunity.basis is Basis.OBSERVED
    assert (opportunity.site.file, opportunity.site.line, opportunity.site.function) == (
        "profile.json",
        0,
        "aten::conv2d",
    )
    assert "in 3 of 3 steps" in opportunity.evidence[0].text
    assert opportunity.effort is Effort.ONE_LINE
    assert "channels_last)" in opportunity.fix


def test_volumes_are_advised_on_their_own_format(sketch: Any, make_tensor: Tensor) -> None:
    draw_step(sketch, 1, 0, make_tensor(2, 64, 8, 16, 16), make_tensor(64, 64, 3, 3, 3))
    assert all("channels_last_3d" in finding.fix for finding in findings_of(sketch))


def test_without_shapes_sizes_are_unknown_and_not_zero(sketch: Any) -> None:
    sketch.op("aten::conv2d", 10, 100)
    sketch.kernel(TO_LAST, 30, 200, 20)
    (finding,) = findings_of(sketch)
    assert finding.bytes_per_step is None
    assert finding.copies == ()
    assert finding.saving.measured_pct == 100.0
    assert any("weights is not known" in evidence.text for evidence in finding.evidence)
    assert "in the whole trace" in finding.evidence[0].text


def test_time_hidden_by_other_kernels_is_not_saved(sketch: Any) -> None:
    sketch.op("aten::conv2d", 10, 100)
    sketch.kernel(TO_LAST, 30, 200, 20)
    sketch.kernel(COMPUTE, 31, 210, 100)
    (finding,) = findings_of(sketch)
    assert finding.saving.measured_pct == pytest.approx(100 * 10 / 110)


def test_work_outside_the_steps_does_not_count(sketch: Any, make_tensor: Tensor) -> None:
    draw_step(sketch, 1, 1000, make_tensor(8, 64, 32, 32), make_tensor(64, 64, 3, 3))
    sketch.op("aten::conv2d", 10, 100)
    sketch.kernel(TO_LAST, 30, 200, 500)
    (first, second) = findings_of(sketch)
    assert first.count_per_step == second.count_per_step == 1
    assert first.saving.measured_pct == pytest.approx(20.0)


def draw_copy(sketch: Any, start: int, operand: Operand, target: Operand, thread: HostThread = MAIN) -> None:
    sketch.op("aten::permute", start, start + 2, operand, thread=thread)
    sketch.op("aten::contiguous", start + 3, start + 9, thread=thread)
    sketch.op("aten::copy_", start + 4, start + 8, target, operand, None, thread=thread)


def test_copies_on_the_cpu_alone_are_a_share_of_operator_time(sketch: Any, make_tensor: Tensor) -> None:
    sketch.op("aten::mm", 0, 92)
    draw_copy(sketch, 100, make_tensor(4, 8, strides=(1, 4)), make_tensor(4, 8, strides=(8, 1)))
    (finding,) = findings_of(sketch)
    assert (finding.rule, finding.bytes_per_step) == ("FRX002", 256)
    assert finding.saving.measured_pct == pytest.approx(6.0)
    assert any("strides (1, 4) to (8, 1)" in evidence.text for evidence in finding.evidence)


def test_copies_on_the_cpu_beside_a_device_save_an_unknown_part(sketch: Any, make_tensor: Tensor) -> None:
    draw_copy(sketch, 100, make_tensor(4, 8), make_tensor(4, 8))
    sketch.op("aten::mm", 200, 300)
    sketch.kernel(COMPUTE, 250, 400, 100)
    (finding,) = findings_of(sketch)
    assert finding.saving.measured_pct is None
    assert finding.severity is Severity.INFO
    assert any("the device may hide it" in evidence.text for evidence in finding.evidence)


def test_one_finding_a_line_and_rule(sketch: Any, make_tensor: Tensor) -> None:
    for start in (100, 200, 300):
        draw_copy(sketch, start, make_tensor(4, 8), make_tensor(4, 8))
    sketch.frame("net.py(3): forward", 90, 250)
    sketch.frame("<built-in method contiguous>", 102, 110, called_from="net.py:7")
    sketch.frame("<built-in method contiguous>", 202, 210, called_from="net.py:7")
    sketch.frame("net.py(20): head", 290, 390)
    assert [(str(finding.site), finding.count_per_step) for finding in findings_of(sketch)] == [
        ("net.py:7", 2),
        ("net.py:20", 1),
    ]


def test_observed_copies_are_a_steps(sketch: Any, make_tensor: Tensor) -> None:
    for number in range(2):
        sketch.step(number, 1000 * number, 1000 * number + 900)
        draw_copy(sketch, 1000 * number + 100, make_tensor(4, 8), make_tensor(4, 8))
    analysis = prepare_trace(sketch.build())
    (copy,) = record_copies(analysis, analysis.copies)
    assert (copy.bytes, copy.count, copy.kind, copy.role) == (256, 1, CopyKind.EXPLICIT, OperandRole.INPUT)
    assert copy.basis is Basis.OBSERVED


@pytest.mark.parametrize(("target", "needless"), [((8, 1), True), ((1, 4), False)])
def test_a_copy_that_changes_no_strides_is_called_needless(
    sketch: Any, make_tensor: Tensor, target: tuple[int, ...], needless: bool
) -> None:
    sketch.op("aten::clone", 3, 9)
    operands = make_tensor(4, 8, strides=target), make_tensor(4, 8, strides=(8, 1))
    sketch.op("aten::copy_", 4, 8, *operands, None)
    (finding,) = findings_of(sketch)
    assert finding.fix.startswith("drop it") is needless


def test_reordering_and_copying_again_and_again(sketch: Any, make_tensor: Tensor) -> None:
    for start in (100, 200):
        draw_copy(sketch, start, make_tensor(4, 8), make_tensor(8, 4))
    (finding,) = find_permutes(prepare_trace(sketch.build()))
    assert (finding.rule, finding.count_per_step, finding.bytes_per_step, finding.copies) == ("FRX003", 2, 512, ())
    assert "FRX002" in finding.evidence[1].text


@pytest.mark.parametrize("case", ["once", "other sizes", "another thread", "something between"])
def test_non_repeated_reordering_is_not_reported(sketch: Any, make_tensor: Tensor, case: str) -> None:
    starts = (100,) if case == "once" else (100, 200)
    for start in starts:
        thread = OTHER if case == "another thread" else MAIN
        operand = make_tensor(3, 5) if case == "other sizes" else make_tensor(4, 8)
        sketch.op("aten::permute", start, start + 2, operand, thread=thread)
        if case == "something between":
            sketch.op("aten::relu", start + 2, start + 3)
        sketch.op("aten::contiguous", start + 3, start + 9)
        sketch.op("aten::copy_", start + 4, start + 8, make_tensor(4, 8), make_tensor(4, 8), None)
    analysis = prepare_trace(sketch.build())
    assert len(analysis.copies) == len(starts)
    assert find_permutes(analysis) == []
