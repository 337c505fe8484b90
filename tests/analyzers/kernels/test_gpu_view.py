"""What limits and data sheets add to counters, for the GPU that is named, and for no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.analyzers.kernels.analysis import analyze_kernels
from frx_graph.analyzers.kernels.gpu_view import BY_CAPABILITY, BY_NAME, BY_OPTION, count_arithmetic, view_gpu
from frx_graph.analyzers.kernels.kernel_totals import KernelTotals
from frx_graph.analyzers.kernels.occupancy_model import Limiter
from frx_graph.evidence.ncu.launch import KernelLaunch
from frx_graph.rules.gpu_profile import require_gpu

H100 = require_gpu("H100")
LAUNCH = {"registers_per_thread": 64.0, "static_shared_memory": 0.0, "dynamic_shared_memory": 0.0}
RATES_A_CYCLE = ("fp32_add_per_cycle", "fp32_mul_per_cycle", "fp32_fma_per_cycle", "fp32_peak_fma_per_cycle")
COUNTED = {"fp32_add": 0.0, "fp32_mul": 0.0, "fp32_fma": 1e9, "dram_bytes": 1e9}


def test_the_gpu_is_the_named_one_then_the_files_then_its_architecture(kernel) -> None:
    plain = kernel(**LAUNCH)
    named = replace(plain, device_name="NVIDIA A40")
    for summary, option, expected in (
        (named, H100, ("H100 SXM", BY_OPTION)),
        (named, None, ("A40", BY_NAME)),
        (plain, None, ("sm_90 (Hopper)", BY_CAPABILITY)),
        (replace(plain, device_name="NVIDIA H100X"), None, ("sm_90 (Hopper)", BY_CAPABILITY)),
    ):
        view = view_gpu(summary, option)
        assert view is not None
        assert (view.profile.name, view.known_by) == expected


def test_unlisted_gpu_has_no_view(kernel) -> None:
    assert view_gpu(replace(kernel(**LAUNCH), device_name="NVIDIA X1", compute_capability="6.1"), None) is None


def test_occupancy_by_the_limits_of_the_architecture(kernel) -> None:
    view = view_gpu(kernel(**LAUNCH), None)
    assert view is not None
    assert (view.occupancy_pct, view.limiters, view.tells) == (50.0, (Limiter.REGISTERS,), True)
    full = view_gpu(kernel(**{**LAUNCH, "registers_per_thread": 32.0}), None)
    assert full is not None
    assert (full.occupancy_pct, full.limiters) == (100.0, ())


@pytest.mark.parametrize("missing", sorted(LAUNCH))
def test_missing_metric_gives_no_occupancy(kernel, missing: str) -> None:
    view = view_gpu(kernel(**{name: value for name, value in LAUNCH.items() if name != missing}), None)
    assert view is not None
    assert (view.occupancy_pct, view.tells) == (None, False)


def test_utilisation_and_intensity_by_the_data_sheet(kernel) -> None:
    view = view_gpu(kernel(duration=1e-3, **COUNTED), H100)
    assert view is not None
    assert view.mfu_pct == pytest.approx(100 * 2e9 / 1e-3 / 67e12)
    assert view.dram_pct == pytest.approx(100 * 1e9 / 1e-3 / 3.35e12)
    assert view.flops_per_byte == pytest.approx(2.0)
    assert view.ridge == pytest.approx(20.0)
    assert view.region == "memory_bound"
    dense = view_gpu(kernel(duration=1e-3, **{**COUNTED, "fp32_fma": 1e12}), H100)
    assert dense is not None
    assert dense.region == "compute_bound"


def test_an_architecture_has_no_peaks(kernel) -> None:
    view = view_gpu(kernel(duration=1e-3, **COUNTED), None)
    assert view is not None
    assert (view.mfu_pct, view.dram_pct, view.ridge, view.region) == (None, None, None, None)


def test_reads_and_writes_are_the_traffic_and_one_alone_is_not(kernel) -> None:
    both = view_gpu(kernel(duration=1e-3, dram_bytes_read=1e9, dram_bytes_written=1e9), H100)
    assert both is not None
    assert both.dram_pct == pytest.approx(100 * 2e9 / 1e-3 / 3.35e12)
    half = view_gpu(kernel(duration=1e-3, dram_bytes_read=1e9), H100)
    assert half is not None
    assert half.dram_pct is None


def test_the_data_sheet_gives_a_region_only_where_counters_give_none(kernel) -> None:
    measured = {"compute_throughput": 95.0, "memory_throughput": 30.0}
    for values, expected in (
        (COUNTED, ("memory_bound", True)),
        ({"dram_bytes": 3e9}, ("memory_bound", True)),
        ({"dram_bytes": 1e9}, ("unknown", False)),
        ({**measured, "dram_bytes": 3e9}, ("compute_bound", False)),
    ):
        (found,) = analyze_kernels([kernel(duration=1e-3, **values)], H100).kernels
        assert (found.attribution.roofline_region, found.attribution.from_datasheet) == expected


def test_counted_peaks_come_before_those_of_the_data_sheet(kernel) -> None:
    rates = {"fp32_add_per_cycle": 0.0, "fp32_mul_per_cycle": 0.0, "fp32_fma_per_cycle": 5.0}
    values = {**COUNTED, **rates, "fp32_peak_fma_per_cycle": 10.0, "compute_throughput": 95.0, "memory_throughput": 9.0}
    (found,) = analyze_kernels([kernel(duration=1e-3, **values)], H100).kernels
    assert found.attribution.mfu_pct == pytest.approx(50.0)
    assert not found.attribution.from_datasheet


def test_a_kernel_above_the_data_sheet_raises_the_roof_of_all(kernel) -> None:
    tensor = {"tensor_bf16_operations": 989.4e9 * 2, "dram_bytes": 3.35e9 * 4}
    fast, slow = kernel("fast", duration=1e-3, **tensor), kernel("slow", duration=4e-3, **tensor)
    views = {one.summary.kernel: one.gpu for one in analyze_kernels([fast, slow], H100).kernels}
    assert views["fast"].mfu_pct == views["fast"].dram_pct == views["fast"].peak_pct["bf16"] == 100.0
    assert views["slow"].mfu_pct == views["slow"].dram_pct == views["slow"].peak_pct["bf16"] == 25.0
    assert views["slow"].arithmetic_roof_pct == pytest.approx(200.0)
    assert views["slow"].dram_roof_pct == pytest.approx(400.0)
    assert views["fast"].ridge == pytest.approx(0.5 * 989.4e12 / 3.35e12)


def test_counters_that_contradict_each_other_show_no_use(kernel) -> None:
    rates = {"fp32_add_per_cycle": 0.0, "fp32_mul_per_cycle": 0.0, "fp32_peak_fma_per_cycle": 10.0}
    for done, expected in ((10.05, 100.0), (21.3, None)):
        (found,) = analyze_kernels([kernel(duration=1e-3, **rates, fp32_fma_per_cycle=done)]).kernels
        assert found.attribution.mfu_pct == expected


COUNTERS = st.fixed_dictionaries(
    {"duration": st.floats(min_value=1e-9, max_value=1e3)},
    optional=dict.fromkeys(
        (*COUNTED, "tensor_fp16_operations", "tensor_tf32_operations"), st.floats(min_value=0.0, max_value=1e20)
    )
    | dict.fromkeys(RATES_A_CYCLE, st.floats(min_value=0.0, max_value=1e4)),
)


@given(st.lists(COUNTERS, min_size=1, max_size=4))
def test_no_kernel_is_above_a_roof(counted: list[dict[str, float]]) -> None:
    summaries = []
    for values in counted:
        totals = KernelTotals()
        totals.add(KernelLaunch("0", "1", "kernel", "0", "9.0", (64, 1, 1), (128, 1, 1), "report.csv", 2, values))
        summaries += totals.summarize_kernels()
    for found in analyze_kernels(summaries, H100).kernels:
        assert found.gpu is not None
        shares = [found.attribution.mfu_pct, found.gpu.mfu_pct, found.gpu.dram_pct, *found.gpu.peak_pct.values()]
        assert all(share is None or 0.0 <= share <= 100.0 for share in shares)


FLOAT32 = {"fp32_add": 1e6, "fp32_mul": 0.0, "fp32_fma": 2e6}
RATES = {
    "fp32_add_per_cycle": 0.0,
    "fp32_mul_per_cycle": 0.0,
    "fp32_fma_per_cycle": 1.0,
    "fp32_peak_fma_per_cycle": 100.0,
}
LIBRARY = "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16_kernel"


@pytest.mark.parametrize(
    ("name", "values", "complete"),
    [
        ("saxpy", {}, True),
        ("saxpy", {"tensor_pipe": 0.0}, True),
        ("saxpy", {"tensor_pipe": 12.0}, False),
        ("saxpy", {"fp64_instructions": 1.0}, False),
        (LIBRARY, {}, False),
        (LIBRARY, {"tensor_pipe": 0.0}, True),
        (LIBRARY, {"tensor_instructions": 10.0}, False),
        (LIBRARY, {"tensor_pipe": 80.0, "tensor_fp16_operations": 1e12}, True),
    ],
)
def test_whether_all_of_it_was_counted(name: str, values: dict[str, float], complete: bool) -> None:
    found = count_arithmetic(name, {**FLOAT32, **values})
    assert found is not None
    assert found.operations["float32"] == 5e6
    assert found.complete is complete
    assert (found.whole is not None) is complete


@pytest.mark.parametrize("values", [{}, {"fp32_add": 1.0, "fp32_mul": 1.0}, {"tensor_bf16_operations": 0.0}])
def test_uncounted_arithmetic_is_none(values: dict[str, float]) -> None:
    assert count_arithmetic("saxpy", values) is None


def test_a_product_on_tensor_cores_is_not_bound_by_memory_for_lack_of_float32(kernel) -> None:
    """Nothing but DRAM and a few float32 instructions were measured: of the product nothing follows."""
    values = {"duration": 1e-3, "dram_bytes": 1e9, **FLOAT32, **RATES}
    product, plain = (analyze_kernels([kernel(name, **values)], H100).kernels[0] for name in (LIBRARY, "saxpy"))
    assert (plain.attribution.roofline_region, plain.attribution.mfu_pct) == ("memory_bound", pytest.approx(1.0))
    assert (product.attribution.roofline_region, product.attribution.mfu_pct) == ("unknown", None)
    view = view_gpu(kernel(LIBRARY, **values), H100)
    assert view is not None
    assert view.peak_pct == {"float32": pytest.approx(100 * 5e6 / 1e-3 / 67e12)}
    assert (view.mfu_pct, view.flops_per_byte, view.ridge, view.region) == (None, None, None, None)


@pytest.mark.parametrize(("of", "peak"), [("fp16", 989.4e12), ("bf16", 989.4e12), ("tf32", 494.7e12)])
def test_tensor_cores_by_the_peak_of_their_format(kernel, of: str, peak: float) -> None:
    values = {"duration": 1e-3, "dram_bytes": 1e8, f"tensor_{of}_operations": peak * 1e-3 / 2}
    view = view_gpu(kernel(LIBRARY, **values), H100)
    assert view is not None
    assert view.peak_pct == {of: pytest.approx(50.0)}
    assert view.mfu_pct == pytest.approx(50.0)
    assert view.ridge == pytest.approx(peak / 3.35e12)
    assert view.region == "compute_bound"
    thin = view_gpu(kernel(LIBRARY, **{**values, "dram_bytes": 3e9}), H100)
    assert thin is not None
    assert thin.region == "memory_bound"


def test_formats_add_up_by_the_time_they_would_take(kernel) -> None:
    half = {"fp32_add": 0.0, "fp32_mul": 0.0, "fp32_fma": 67e12 * 1e-3 / 8}
    values = {"duration": 1e-3, "dram_bytes": 1e9, **half, "tensor_tf32_operations": 494.7e12 * 1e-3 / 4}
    view = view_gpu(kernel(LIBRARY, **values), H100)
    assert view is not None
    assert view.peak_pct == {"tf32": pytest.approx(25.0), "float32": pytest.approx(25.0)}
    assert view.mfu_pct == pytest.approx(50.0)
    # At the peaks it would take half a millisecond, in which DRAM moves 1.675 GB.
    assert view.ridge == pytest.approx((67e12 / 4 + 494.7e12 / 4) * 1e-3 / (0.5e-3 * 3.35e12))


def test_a_format_without_a_peak_leaves_the_whole_unknown(kernel) -> None:
    unlisted = require_gpu("RTX PRO 6000 Blackwell")
    values = {"duration": 1e-3, **FLOAT32, "tensor_tf32_operations": 1e9}
    view = view_gpu(kernel(LIBRARY, **values), unlisted)
    assert view is not None
    assert set(view.peak_pct) == {"float32"}
    assert view.mfu_pct is None


def test_counted_tensor_operations_identify_a_matrix_product(kernel) -> None:
    values = {"tensor_pipe": 5.0, "achieved_occupancy": 50.0, "compute_throughput": 30.0, "memory_throughput": 20.0}
    unnamed = analyze_kernels([kernel("fused", **values)]).kernels[0]
    told = analyze_kernels([kernel("fused", **values, tensor_tf32_operations=1e9)]).kernels[0]
    assert "tensor_core_underutilized" not in {label.label for label in unnamed.labels}
    assert "tensor_core_underutilized" in {label.label for label in told.labels}


def test_launch_traffic_is_shown_with_the_cache_size(kernel) -> None:
    view = view_gpu(kernel("saxpy", duration=1e-3, dram_bytes=1e9), H100)
    assert view is not None
    assert (view.launch_bytes, view.profile.l2_bytes) == (1e9, 50 << 20)
