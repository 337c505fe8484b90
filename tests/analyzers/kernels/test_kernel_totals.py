"""Launches are added up by their time, and what was not measured is left out."""

from __future__ import annotations

import pytest

from frx_graph.analyzers.kernels.kernel_totals import KernelTotals
from frx_graph.analyzers.kernels.occupancy_model import Limiter


def test_a_thousand_short_launches_are_as_much_as_one_long_one(launched) -> None:
    totals = KernelTotals()
    for _ in range(1000):
        totals.add(launched("short", duration=10e-6, dram_throughput=10.0))
    totals.add(launched("long", duration=10e-3, dram_throughput=90.0))
    short, long = sorted(totals.summarize_kernels(), key=lambda kernel: -kernel.launches)
    assert (short.launches, short.seconds) == (1000, pytest.approx(10e-3))
    assert (long.launches, long.seconds) == (1, pytest.approx(10e-3))


def test_percentages_are_weighted_by_time_and_bytes_are_summed(launched) -> None:
    totals = KernelTotals()
    totals.add(launched(duration=9.0, dram_throughput=10.0, dram_bytes_read=100.0))
    totals.add(launched(duration=1.0, dram_throughput=90.0, dram_bytes_read=200.0))
    (kernel,) = totals.summarize_kernels()
    assert kernel.values["dram_throughput"] == pytest.approx(18.0)
    assert kernel.values["dram_bytes_read"] == 300.0
    assert kernel.values["duration"] == kernel.seconds == 10.0


def test_missing_metric_does_not_count_as_zero_in_the_mean(launched) -> None:
    totals = KernelTotals()
    totals.add(launched(duration=1.0, l2_hit_rate=80.0))
    totals.add(launched(duration=1.0))
    (kernel,) = totals.summarize_kernels()
    assert kernel.values["l2_hit_rate"] == 80.0


def test_without_all_times_launches_count_the_same(launched) -> None:
    totals = KernelTotals()
    totals.add(launched(duration=9.0, dram_throughput=10.0, block_limit_registers=1.0, block_limit_warps=8.0))
    totals.add(launched(dram_throughput=90.0, block_limit_registers=9.0, block_limit_warps=8.0))
    (kernel,) = totals.summarize_kernels()
    assert kernel.values["dram_throughput"] == 50.0
    assert kernel.seconds is None
    assert "duration" not in kernel.values
    assert kernel.limiters == {Limiter.REGISTERS: 0.5, Limiter.WARPS: 0.5}


def test_shared_memory_of_launches_does_not_add_up(launched) -> None:
    totals = KernelTotals()
    for _ in range(8):
        totals.add(launched(duration=1.0, static_shared_memory=16384.0, block_limit_shared_memory=6.0))
    (kernel,) = totals.summarize_kernels()
    assert kernel.values["static_shared_memory"] == 16384.0
    totals.add(launched(duration=1.0, static_shared_memory=1024.0, block_limit_shared_memory=6.0, block=256))
    (kernel,) = totals.summarize_kernels()
    assert "static_shared_memory" not in kernel.values
    assert kernel.values["block_limit_shared_memory"] == 6.0
    assert (kernel.block, kernel.grid) == (None, None)


def test_limiters_are_weighted_by_launch_time(launched) -> None:
    totals = KernelTotals()
    totals.add(launched(duration=9.0, block_limit_registers=1.0, block_limit_warps=8.0))
    totals.add(launched(duration=1.0, block_limit_registers=9.0, block_limit_warps=8.0))
    (kernel,) = totals.summarize_kernels()
    assert kernel.limiters == {Limiter.REGISTERS: pytest.approx(0.9), Limiter.WARPS: pytest.approx(0.1)}


def test_devices_are_kept_apart(launched) -> None:
    totals = KernelTotals()
    totals.add(launched(device="0"))
    totals.add(launched(device="1"))
    assert [kernel.device for kernel in totals.summarize_kernels()] == ["0", "1"]


def test_a_sum_over_some_launches_is_not_that_of_all(launched) -> None:
    totals = KernelTotals()
    totals.add(launched(duration=1.0, dram_bytes=100.0, stall_samples__wait=3.0, stall_samples__selected=1.0))
    totals.add(launched(duration=1.0, l2_hit_rate=80.0))
    (kernel,) = totals.summarize_kernels()
    assert "dram_bytes" not in kernel.values
    assert (kernel.values["l2_hit_rate"], kernel.values["duration"]) == (80.0, 2.0)
    # Of samples only shares are taken, which are those of the launches that have some.
    assert kernel.values["stall_samples.wait"] == 3.0
