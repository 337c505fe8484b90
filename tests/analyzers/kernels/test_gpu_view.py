"""What limits and data sheets add to counters, for the GPU that is named, and for no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frx_graph.analyzers.kernels.analysis import analyse_kernels
from frx_graph.analyzers.kernels.gpu_view import BY_CAPABILITY, BY_NAME, BY_OPTION, gpu_view
from frx_graph.analyzers.kernels.occupancy_limit import Limiter
from frx_graph.rules.gpu_profile import gpu_named

H100 = gpu_named("H100")
LAUNCH = {"registers_per_thread": 64.0, "static_shared_memory": 0.0, "dynamic_shared_memory": 0.0}
COUNTED = {"fp32_add": 0.0, "fp32_mul": 0.0, "fp32_fma": 1e9, "dram_bytes": 1e9}


def test_the_gpu_is_the_named_one_then_the_files_then_its_architecture(kernel) -> None:
    plain = kernel(**LAUNCH)
    named = replace(plain, device_name="NVIDIA A40")
    for summary, given, expected in (
        (named, H100, ("H100 SXM", BY_OPTION)),
        (named, None, ("A40", BY_NAME)),
        (plain, None, ("sm_90 (Hopper)", BY_CAPABILITY)),
        (replace(plain, device_name="NVIDIA H100X"), None, ("sm_90 (Hopper)", BY_CAPABILITY)),
    ):
        view = gpu_view(summary, given)
        assert view is not None
        assert (view.profile.name, view.known_by) == expected


def test_a_gpu_that_is_not_listed_is_no_other(kernel) -> None:
    assert gpu_view(replace(kernel(**LAUNCH), device_name="NVIDIA X1", compute_capability="6.1"), None) is None


def test_occupancy_by_the_limits_of_the_architecture(kernel) -> None:
    view = gpu_view(kernel(**LAUNCH), None)
    assert view is not None
    assert (view.occupancy_pct, view.limiters, view.tells) == (50.0, (Limiter.REGISTERS,), True)
    full = gpu_view(kernel(**{**LAUNCH, "registers_per_thread": 32.0}), None)
    assert full is not None
    assert (full.occupancy_pct, full.limiters) == (100.0, ())


@pytest.mark.parametrize("missing", sorted(LAUNCH))
def test_what_was_not_measured_gives_no_occupancy(kernel, missing: str) -> None:
    view = gpu_view(kernel(**{name: value for name, value in LAUNCH.items() if name != missing}), None)
    assert view is not None
    assert (view.occupancy_pct, view.tells) == (None, False)


def test_utilisation_and_intensity_by_the_data_sheet(kernel) -> None:
    view = gpu_view(kernel(duration=1e-3, **COUNTED), H100)
    assert view is not None
    assert view.mfu_pct == pytest.approx(100 * 2e9 / 1e-3 / 67e12)
    assert view.dram_pct == pytest.approx(100 * 1e9 / 1e-3 / 3.35e12)
    assert view.flops_per_byte == pytest.approx(2.0)
    assert view.ridge == pytest.approx(20.0)
    assert view.region == "memory_bound"
    dense = gpu_view(kernel(duration=1e-3, **{**COUNTED, "fp32_fma": 1e12}), H100)
    assert dense is not None
    assert dense.region == "compute_bound"


def test_an_architecture_has_no_peaks(kernel) -> None:
    view = gpu_view(kernel(duration=1e-3, **COUNTED), None)
    assert view is not None
    assert (view.mfu_pct, view.dram_pct, view.ridge, view.region) == (None, None, None, None)


def test_reads_and_writes_are_the_traffic_and_one_alone_is_not(kernel) -> None:
    both = gpu_view(kernel(duration=1e-3, dram_bytes_read=1e9, dram_bytes_written=1e9), H100)
    assert both is not None
    assert both.dram_pct == pytest.approx(100 * 2e9 / 1e-3 / 3.35e12)
    half = gpu_view(kernel(duration=1e-3, dram_bytes_read=1e9), H100)
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
        (found,) = analyse_kernels([kernel(duration=1e-3, **values)], H100).kernels
        assert (found.attribution.roofline_region, found.attribution.from_datasheet) == expected


def test_counted_peaks_come_before_those_of_the_data_sheet(kernel) -> None:
    rates = {"fp32_add_per_cycle": 0.0, "fp32_mul_per_cycle": 0.0, "fp32_fma_per_cycle": 5.0}
    values = {**COUNTED, **rates, "fp32_peak_fma_per_cycle": 10.0, "compute_throughput": 95.0, "memory_throughput": 9.0}
    (found,) = analyse_kernels([kernel(duration=1e-3, **values)], H100).kernels
    assert found.attribution.mfu_pct == pytest.approx(50.0)
    assert not found.attribution.from_datasheet
