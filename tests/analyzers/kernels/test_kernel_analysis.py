"""Bottlenecks of many kernels, what they can gain at most, and which kernel comes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frx_graph.analyzers.kernels.analysis import analyze_kernels, bound_speedup
from frx_graph.analyzers.kernels.attribution import Opportunity, attribute_kernels, compute_fp32_utilisation
from frx_graph.analyzers.kernels.labels import label_kernel
from frx_graph.rules.gpu_profile import require_gpu

STREAM = {"compute_throughput": 20.0, "memory_throughput": 90.0, "dram_throughput": 90.0}
BUSY = {"compute_throughput": 95.0, "memory_throughput": 30.0}
WAITING = {"compute_throughput": 10.0, "memory_throughput": 20.0, "no_eligible": 90.0}


def test_the_kernel_that_takes_the_time_makes_the_bottleneck(kernel) -> None:
    analysis = analyze_kernels([kernel("stream", duration=9e-3, **STREAM), kernel("waiting", duration=1e-3, **WAITING)])
    assert analysis.primary is not None
    assert analysis.primary.label == "memory_bandwidth_bound"
    assert analysis.primary.score == pytest.approx(0.9 * 0.9)
    assert analysis.primary.kernels == ("stream",)
    turned = analyze_kernels([kernel("stream", duration=1e-4, **STREAM), kernel("waiting", duration=9e-3, **WAITING)])
    assert turned.primary is not None
    assert turned.primary.label == "low_issue_efficiency"


def test_without_times_no_share_is_claimed(kernel) -> None:
    analysis = analyze_kernels([kernel("stream", **STREAM), kernel("waiting", duration=1e-3, **WAITING)])
    assert not analysis.timed
    assert all(one.attribution.runtime_share_pct is None for one in analysis.kernels)


def test_kernel_at_its_peak_is_not_an_opportunity(kernel) -> None:
    kernels = [kernel("busy", duration=9e-3, **BUSY), kernel("waiting", duration=1e-3, **WAITING)]
    last, first = attribute_kernels([(one, label_kernel(one), None) for one in kernels])
    assert (first.kernel.kernel, last.kernel.kernel) == ("waiting", "busy")
    assert (last.score, last.opportunity, last.roofline_region) == (0.0, Opportunity.NONE, "compute_bound")
    assert last.runtime_share_pct == pytest.approx(90.0)


def test_busy_kernel_has_no_bottleneck(kernel) -> None:
    analysis = analyze_kernels([kernel("busy", duration=1e-3, **BUSY)])
    assert (analysis.primary, analysis.recommendations) == (None, ())


def test_too_few_metrics_are_not_a_bottleneck_and_more_are_requested(kernel) -> None:
    analysis = analyze_kernels([kernel("unknown", duration=1e-3)])
    assert analysis.primary is None
    assert [found.card.id for found in analysis.recommendations] == ["rec_collect_ncu_metrics"]


def test_advice_shows_measured_values(kernel) -> None:
    values = STREAM | {"sectors_per_load": 32.0, "duration": 1e-3}
    found = {one.card.id: one for one in analyze_kernels([kernel(**values)]).recommendations}
    coalesce = found["rec_coalesce_global_loads"]
    current = {check.step.value: check.current for check in coalesce.checks}
    assert current == {"sectors_per_load": 32.0, "sectors_per_store": None, "dram_throughput": 90.0}
    assert coalesce.triggered_by == ("uncoalesced_access",)
    assert found["rec_reduce_dram_traffic"].checks[1].current == 1e-3


@pytest.mark.parametrize(
    ("label", "values", "most"),
    [
        # Compute takes over at 20 of 90 percent.
        ("memory_bandwidth_bound", STREAM, 350.0),
        ("uncoalesced_access", STREAM | {"load_bytes_per_sector": 20.0}, 60.0),
        ("uncoalesced_access", STREAM | {"sectors_per_load": 32.0}, 350.0),
        ("low_issue_efficiency", WAITING, 400.0),
        ("low_issue_efficiency", {"compute_throughput": 0.02, "memory_throughput": 0.5}, None),
        ("memory_bandwidth_bound", {"dram_throughput": 90.0}, None),
        ("tensor_core_underutilized", STREAM, None),
    ],
)
def test_bounds_come_from_counters(kernel, label: str, values: dict[str, float], most: float | None) -> None:
    named = kernel("k(const float *)", **values)
    assert bound_speedup(label, named) == (None if most is None else pytest.approx(most))


def test_a_grid_of_many_waves_is_not_too_small(kernel) -> None:
    """Of an architecture without a product, the largest one counts."""
    values = {"compute_throughput": 6.4, "achieved_occupancy": 41.24}
    small = kernel("transpose(const float *, float *)", **values)
    assert analyze_kernels([small]).primary.label == "occupancy_limited"
    large = replace(small, grid=(64, 64, 1), block=(32, 32, 1))
    found = analyze_kernels([large])
    assert found.kernels[0].gpu.least_waves > 10
    assert found.primary is None


def test_utilisation_is_of_the_peak_that_was_measured() -> None:
    counted = {"fp32_add_per_cycle": 100.0, "fp32_mul_per_cycle": 100.0, "fp32_fma_per_cycle": 400.0}
    assert compute_fp32_utilisation({**counted, "fp32_peak_fma_per_cycle": 1000.0}) == pytest.approx(50.0)
    assert compute_fp32_utilisation(counted) is None
    # A kernel of tensor cores adds nothing there: that is no utilisation of zero.
    assert compute_fp32_utilisation(dict.fromkeys(counted, 0.0) | {"fp32_peak_fma_per_cycle": 1000.0}) is None


def test_named_gpu_is_used_if_counters_are_missing(kernel) -> None:
    streams = kernel("saxpy", duration=1e-3, dram_bytes=3e9)
    assert analyze_kernels([streams]).primary is None
    named = analyze_kernels([streams], require_gpu("H100"))
    assert named.primary is not None
    assert (named.primary.label, named.primary.confidence) == ("memory_bandwidth_bound", 0.6)
    bound = {"compute_throughput": 20.0, "memory_throughput": 90.0}
    with_verdict = analyze_kernels(
        [kernel("saxpy", duration=1e-3, dram_bytes=3e9, **bound)], require_gpu("H100")
    ).primary
    assert with_verdict is not None
    assert (with_verdict.label, with_verdict.confidence) == ("memory_bandwidth_bound", 0.6)


def test_derived_metric_is_current_and_not_missing(kernel) -> None:
    counts = {
        "load_sectors": 1600.0,
        "load_requests": 100.0 / 0.9,
        "compute_throughput": 20.0,
        "memory_throughput": 90.0,
    }
    found = analyze_kernels([kernel("k(const float *)", **counts)])
    (card,) = (one for one in found.recommendations if one.card.id == "rec_coalesce_global_loads")
    assert card.checks[0].current == pytest.approx(14.4)
