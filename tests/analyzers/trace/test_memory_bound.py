from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from frx_graph.analyzers.trace.analysis import prepare_trace
from frx_graph.analyzers.trace.costs import CallCost, CallCosts
from frx_graph.analyzers.trace.memory_bound import find_memory_bound
from frx_graph.analyzers.trace.roofline import compute_roofline_points, is_memory_bound, measure_work
from frx_graph.evidence.dtype import DType
from frx_graph.evidence.trace.events import ActivityKind, Operand
from frx_graph.evidence.trace.tree import build_tree
from frx_graph.passes import confidence
from frx_graph.records import Finding, Severity
from frx_graph.rules.gpu_profile import GpuPeaks, find_gpu

POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)"
COMPUTE = "volta_sgemm_64x64_nt"
V100_PROFILE = find_gpu("Tesla V100-SXM2-32GB")
assert V100_PROFILE is not None
V100 = V100_PROFILE.peaks
Tensor = Callable[..., Operand]


def findings_of(sketch: Any, peaks: GpuPeaks | None = V100) -> list[Finding]:
    analysis = prepare_trace(sketch.build())
    return find_memory_bound(analysis, measure_work(analysis), peaks)


def draw(sketch: Any, name: str, kernel: str, duration: int, *operands: Operand | None, start: int = 10) -> None:
    sketch.op(name, start, start + 80, *operands)
    sketch.kernel(kernel, start + 20, start + 1000, duration)


def test_a_pointwise_kernel_waits_for_memory(sketch: Any, make_tensor: Tensor) -> None:
    operand = make_tensor(32, 256, 56, 56)  # 103 MB: 308 MB are moved in 400 µs, 770 GB/s
    draw(sketch, "aten::add", POINTWISE, 400, operand, operand, None)
    (finding,) = findings_of(sketch)
    assert (finding.rule, finding.severity, finding.count_per_step) == ("FRX005", Severity.MEDIUM, 1)
    assert finding.bytes_per_step is None
    assert finding.saving.measured_pct is None
    texts = [evidence.text for evidence in finding.evidence]
    assert "100.0 % of the time that the device was busy" in texts[0]
    assert "308 MB a step at 771 GB/s; V100 SXM2 reaches 900 GB/s" in texts[1]
    assert "0.083 FLOP per byte; its ridge point is 17" in texts[2]


def test_without_shapes_the_kind_of_kernel_decides(sketch: Any) -> None:
    draw(sketch, "aten::add", POINTWISE, 400)
    (finding,) = findings_of(sketch)
    assert finding.confidence == confidence.MODELLED
    assert "bytes and bandwidth are not known" in finding.evidence[1].text


def test_a_product_above_the_ridge_point_does_not(sketch: Any, make_tensor: Tensor) -> None:
    draw(sketch, "aten::mm", COMPUTE, 400, make_tensor(2048, 2048), make_tensor(2048, 2048))
    assert findings_of(sketch) == []


def test_a_product_below_it_does(sketch: Any, make_tensor: Tensor) -> None:
    draw(sketch, "aten::mm", COMPUTE, 100, make_tensor(8, 4096), make_tensor(4096, 4096))
    (finding,) = findings_of(sketch)
    assert finding.title == "mm waits for memory"


def test_float32_on_tensor_cores_has_their_ridge_point(sketch: Any, make_tensor: Tensor) -> None:
    """64 FLOP per byte: more than float32 needs on an A100 to be bound by arithmetic, less than TF32 does."""
    a100 = find_gpu("A100")
    assert a100 is not None
    peaks = a100.peaks
    assert peaks is not None
    assert peaks.tf32_flops is not None
    operands = make_tensor(160, 4096), make_tensor(4096, 4096)
    draw(sketch, "aten::mm", COMPUTE, 100, *operands)
    assert findings_of(sketch, peaks) == []
    draw(sketch, "aten::mm", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tensor16x8x8_kernel", 100, *operands, start=2000)
    assert [finding.count_per_step for finding in findings_of(sketch, peaks)] == [1]
    assert findings_of(sketch, replace(peaks, tf32_flops=None)) == []


def test_a_product_on_an_unknown_device_is_not_judged(sketch: Any, make_tensor: Tensor) -> None:
    draw(sketch, "aten::mm", COMPUTE, 100, make_tensor(8, 4096), make_tensor(4096, 4096))
    assert findings_of(sketch, peaks=None) == []


@pytest.mark.parametrize(
    ("duration", "shape"), [(15, (32, 256, 56, 56)), (4000, (64, 64))], ids=["over at once", "slow for other reasons"]
)
def test_kernels_waiting_for_something_else_do_not_count(
    sketch: Any, make_tensor: Tensor, duration: int, shape: tuple[int, ...]
) -> None:
    draw(sketch, "aten::relu", POINTWISE, duration, make_tensor(*shape))
    assert findings_of(sketch) == []


def test_small_share_of_time_is_not_a_finding(sketch: Any, make_tensor: Tensor) -> None:
    draw(sketch, "aten::relu", POINTWISE, 30)
    draw(sketch, "aten::mm", COMPUTE, 10_000, make_tensor(2048, 2048), make_tensor(2048, 2048), start=3000)
    assert findings_of(sketch) == []


def test_kernels_that_a_copy_claims_are_not_counted_again(sketch: Any, make_tensor: Tensor) -> None:
    sketch.op("aten::contiguous", 10, 100)
    sketch.op("aten::copy_", 20, 90, make_tensor(64, 64), make_tensor(64, 64), None)
    sketch.kernel("void at::native::elementwise_kernel<128, 2, direct_copy_kernel_cuda>(int)", 30, 200, 400)
    assert findings_of(sketch) == []


def test_copies_and_fills_bring_their_own_bytes(sketch: Any) -> None:
    sketch.op("aten::zero_", 10, 100)
    sketch.kernel("Memset (Device)", 30, 200, 100, kind=ActivityKind.MEMSET, bytes=80_000_000)
    (finding,) = findings_of(sketch)
    assert "80.0 MB a step at 800 GB/s" in finding.evidence[1].text


def test_a_speed_above_the_data_sheet_is_said_to_be_a_caches(sketch: Any) -> None:
    sketch.op("aten::zero_", 10, 100)
    sketch.kernel("Memset (Device)", 30, 200, 100, kind=ActivityKind.MEMSET, bytes=400_000_000)
    (finding,) = findings_of(sketch)
    assert "at 4e+03 GB/s; so a cache held a part of it: the memory of V100 SXM2 has 900" in finding.evidence[1].text


def test_roofline_points_are_a_steps(sketch: Any, make_tensor: Tensor) -> None:
    for number in range(2):
        start = 10_000 * number
        sketch.step(number, start, start + 5000)
        draw(sketch, "aten::mm", COMPUTE, 400, make_tensor(64, 32), make_tensor(32, 16), start=start + 10)
    analysis = prepare_trace(sketch.build())
    (point,) = compute_roofline_points(analysis, measure_work(analysis))
    assert (point.operator, point.count, point.flops, point.dtype) == ("aten::mm", 1, 2 * 64 * 32 * 16, "float32")
    assert point.bytes == 4 * (64 * 32 + 32 * 16 + 64 * 16)
    assert point.seconds == pytest.approx(400e-6)


def test_on_the_cpu_an_operators_time_is_its_own(sketch: Any, make_tensor: Tensor) -> None:
    sketch.op("aten::linear", 0, 1000)
    sketch.op("aten::addmm", 100, 900, make_tensor(16), make_tensor(64, 32), make_tensor(32, 16))
    analysis = prepare_trace(sketch.build())
    assert [work.time_ns for work in measure_work(analysis)] == [200_000, 800_000]


def cost(sketch: Any, name: str, *operands: Operand | None, **fields: Any) -> CallCost | None:
    sketch.op(name, 0, 10, *operands, **fields)
    return CallCosts(build_tree(sketch.build())).count_call(len(sketch.operators) - 1)


@pytest.mark.parametrize(
    ("name", "shapes", "expected_bytes", "expected_flops"),
    [
        ("aten::relu", [(4, 8)], 256, 32),
        ("aten::add_", [(4, 8), (4, 8), None], 384, 32),
        ("aten::mul", [(4, 8), (8,)], 288, 32),
        ("aten::copy_", [(4, 8), (4, 8), None], 256, 0),
        ("aten::bmm", [(2, 4, 8), (2, 8, 4)], 4 * (64 + 64 + 32), 512),
        ("aten::_softmax", [(4, 8), None, None], 256, 160),
        ("aten::clamp_min", [(4, 8), None, (4, 8)], 256, 32),  # the last is `out`
    ],
)
def test_costs_of_calls(
    sketch: Any,
    make_tensor: Tensor,
    name: str,
    shapes: list[tuple[int, ...] | None],
    expected_bytes: int,
    expected_flops: int,
) -> None:
    operands = [None if shape is None else make_tensor(*shape) for shape in shapes]
    assert cost(sketch, name, *operands) == CallCost(expected_bytes, expected_flops, DType.FLOAT32)


@pytest.mark.parametrize("name", ["aten::unique", "aten::__class__", "aten::", "mylib::add", "aten::eq", "no operator"])
def test_calls_whose_cost_is_unknown(sketch: Any, make_tensor: Tensor, name: str) -> None:
    assert cost(sketch, name, make_tensor(4, 8), make_tensor(4, 8)) is None


def test_shapes_that_do_not_fit_or_cannot_be(sketch: Any, make_tensor: Tensor) -> None:
    assert cost(sketch, "aten::mm", make_tensor(4, 8), make_tensor(9, 4)) is None
    assert cost(sketch, "aten::add", make_tensor(4, 8), make_tensor(3, 3)) is None
    assert cost(sketch, "aten::relu", make_tensor(1 << 40, 1 << 40)) is None
    assert cost(sketch, "aten::add", make_tensor(4), Operand((4,), None)) is None


def test_half_precision_is_judged_by_the_tensor_cores_ridge_point(sketch: Any, make_tensor: Tensor) -> None:
    for dtype, expected in ((DType.FLOAT32, False), (DType.FLOAT16, True)):
        sketch.operators.clear()
        sketch.calls.clear()
        sketch.activities.clear()
        operands = make_tensor(128, 4096, dtype=dtype), make_tensor(4096, 4096, dtype=dtype)
        draw(sketch, "aten::mm", COMPUTE, 100, *operands)
        (work,) = measure_work(prepare_trace(sketch.build()))
        assert is_memory_bound(work, V100) is expected
