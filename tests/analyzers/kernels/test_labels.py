"""Each label with its near miss: at its line it flips, and without its evidence there is none."""

from __future__ import annotations

import pytest

from frx_graph.analyzers.kernels.labels import INSUFFICIENT, Estimates, label_kernel
from frx_graph.analyzers.kernels.occupancy_model import Limiter

MEMORY_BOUND = {"compute_throughput": 20.0, "memory_throughput": 85.0}
LATENCY_BOUND = {"compute_throughput": 20.0, "memory_throughput": 30.0}
COMPUTE_BOUND = {"compute_throughput": 90.0, "memory_throughput": 30.0}
WAITS = {"stall_share__long_scoreboard": 50.0, "stall_share__barrier": 5.0}
SYNCS = {"stall_share__long_scoreboard": 5.0, "stall_share__barrier": 50.0}
GEMM = "cutlass_80_tensorop_gemm"


@pytest.mark.parametrize(
    ("label", "fires", "near_miss"),
    [
        ("memory_bandwidth_bound", MEMORY_BOUND | {"dram_throughput": 60.0}, MEMORY_BOUND | {"dram_throughput": 59.9}),
        (
            "memory_bandwidth_bound",
            MEMORY_BOUND | {"dram_throughput": 85.0} | WAITS,
            MEMORY_BOUND | {"dram_throughput": 85.0} | SYNCS,
        ),
        # L2 is the busy part, not DRAM.
        ("memory_bandwidth_bound", MEMORY_BOUND | {"dram_throughput": 85.0}, MEMORY_BOUND | {"dram_throughput": 10.0}),
        ("warp_stall_memory", LATENCY_BOUND | WAITS, LATENCY_BOUND | {"stall_share__long_scoreboard": 19.0}),
        ("warp_stall_memory", LATENCY_BOUND | WAITS, COMPUTE_BOUND | WAITS),
        ("warp_stall_memory", LATENCY_BOUND | WAITS, LATENCY_BOUND | SYNCS),
        ("warp_stall_sync", LATENCY_BOUND | SYNCS, LATENCY_BOUND | {"stall_share__wait": 50.0}),
        (
            "l1_cache_thrashing",
            MEMORY_BOUND | {"l1_hit_rate": 39.9, "l2_hit_rate": 80.0},
            MEMORY_BOUND | {"l1_hit_rate": 40.0, "l2_hit_rate": 80.0},
        ),
        # A stream: neither cache has seen it before.
        (
            "l1_cache_thrashing",
            MEMORY_BOUND | {"l1_hit_rate": 5.0, "l2_hit_rate": 80.0},
            MEMORY_BOUND | {"l1_hit_rate": 5.0, "l2_hit_rate": 2.0},
        ),
        # Its stores hit L2, and so do its loads of what another kernel left there.
        (
            "l1_cache_thrashing",
            MEMORY_BOUND | {"l1_hit_rate": 1.0, "l2_hit_rate": 80.0},
            MEMORY_BOUND | {"l1_hit_rate": 0.9, "l2_hit_rate": 80.0},
        ),
        (
            "l1_cache_thrashing",
            MEMORY_BOUND | {"l1_hit_rate": 20.0, "l2_hit_rate": 60.0, "dram_throughput": 40.0},
            MEMORY_BOUND | {"l1_hit_rate": 20.0, "l2_hit_rate": 60.0, "dram_throughput": 85.0},
        ),
        # Nothing says that memory matters.
        (
            "l1_cache_thrashing",
            MEMORY_BOUND | {"l1_hit_rate": 20.0, "l2_hit_rate": 60.0},
            {"l1_hit_rate": 20.0, "l2_hit_rate": 60.0},
        ),
        # Tiles go to shared memory past L1.
        (
            "l1_cache_thrashing",
            LATENCY_BOUND | {"l1_hit_rate": 1.5, "l2_hit_rate": 80.0} | WAITS,
            LATENCY_BOUND | {"l1_hit_rate": 1.5, "l2_hit_rate": 80.0},
        ),
        (
            "l2_cache_thrashing",
            MEMORY_BOUND | {"l1_hit_rate": 60.0, "l2_hit_rate": 49.9},
            MEMORY_BOUND | {"l1_hit_rate": 60.0, "l2_hit_rate": 50.0},
        ),
        ("uncoalesced_access", MEMORY_BOUND | {"sectors_per_load": 32.0}, MEMORY_BOUND | {"sectors_per_load": 4.0}),
        ("uncoalesced_access", MEMORY_BOUND | {"sectors_per_store": 32.0}, MEMORY_BOUND | {"sectors_per_store": 4.0}),
        # Without types, loads may be of up to 16 bytes a thread.
        ("uncoalesced_access", MEMORY_BOUND | {"sectors_per_load": 20.0}, MEMORY_BOUND | {"sectors_per_load": 16.0}),
        ("uncoalesced_access", MEMORY_BOUND | {"sectors_per_load": 20.0}, MEMORY_BOUND | {"sectors_per_load": 12.0}),
        # A stride of three floats, and a stencil of doubles.
        (
            "uncoalesced_access",
            MEMORY_BOUND | {"load_sector_use": 33.33},
            MEMORY_BOUND | {"load_bytes_per_sector": 28.44},
        ),
        # All threads read one word.
        (
            "uncoalesced_access",
            MEMORY_BOUND | {"load_sector_use": 12.5, "sectors_per_load": 32.0},
            MEMORY_BOUND | {"load_sector_use": 12.5, "sectors_per_load": 1.0},
        ),
        # Of two measures the milder one counts.
        (
            "uncoalesced_access",
            MEMORY_BOUND | {"store_bytes_per_sector": 4.0, "sectors_per_store": 32.0},
            MEMORY_BOUND | {"store_bytes_per_sector": 32.0, "sectors_per_store": 32.0},
        ),
        (
            "uncoalesced_access",
            MEMORY_BOUND | {"load_sectors": 3200.0, "load_requests": 100.0},
            MEMORY_BOUND | {"load_sectors": 400.0, "load_requests": 100.0},
        ),
        (
            "occupancy_limited",
            LATENCY_BOUND | {"achieved_occupancy": 8.3, "theoretical_occupancy": 100.0},
            LATENCY_BOUND | {"achieved_occupancy": 50.0, "theoretical_occupancy": 100.0},
        ),
        # A grid that fills the device twice is not too small.
        (
            "occupancy_limited",
            LATENCY_BOUND | {"achieved_occupancy": 8.3, "theoretical_occupancy": 100.0, "waves": 1.9},
            LATENCY_BOUND | {"achieved_occupancy": 8.3, "theoretical_occupancy": 100.0, "waves": 2.0},
        ),
        (
            "occupancy_limited_by_registers",
            LATENCY_BOUND
            | {"achieved_occupancy": 16.0, "theoretical_occupancy": 16.67, "block_limit_registers": 2.0}
            | {"block_limit_shared_memory": 4.0},
            LATENCY_BOUND
            | {"achieved_occupancy": 16.0, "theoretical_occupancy": 16.67, "block_limit_registers": 4.0}
            | {"block_limit_shared_memory": 2.0},
        ),
        (
            "occupancy_limited_by_shared_memory",
            LATENCY_BOUND
            | {"achieved_occupancy": 16.0, "theoretical_occupancy": 16.67, "block_limit_shared_memory": 2.0},
            COMPUTE_BOUND
            | {"achieved_occupancy": 16.0, "theoretical_occupancy": 16.67, "block_limit_shared_memory": 2.0},
        ),
        (
            "occupancy_limited_by_block_size",
            LATENCY_BOUND | {"achieved_occupancy": 30.0, "theoretical_occupancy": 33.3, "block_limit_blocks": 16.0},
            LATENCY_BOUND | {"achieved_occupancy": 30.0, "theoretical_occupancy": 33.3, "block_limit_registers": 5.0},
        ),
        (
            "low_warp_scheduler_utilization",
            LATENCY_BOUND | {"eligible_warps": 0.9},
            LATENCY_BOUND | {"eligible_warps": 1.0},
        ),
        ("low_issue_efficiency", LATENCY_BOUND | {"no_eligible": 61.0}, LATENCY_BOUND | {"no_eligible": 60.0}),
        ("low_issue_efficiency", LATENCY_BOUND | {"issue_slots_busy": 39.0}, MEMORY_BOUND | {"issue_slots_busy": 39.0}),
    ],
)
def test_a_label_flips_at_its_line(kernel, label: str, fires: dict[str, float], near_miss: dict[str, float]) -> None:
    assert label in [found.label for found in label_kernel(kernel(**fires))]
    assert label not in [found.label for found in label_kernel(kernel(**near_miss))]


def test_tensor_cores_are_for_products_of_matrices(kernel) -> None:
    idle = LATENCY_BOUND | {"tensor_pipe": 5.0, "achieved_occupancy": 60.0}
    assert "tensor_core_underutilized" in [found.label for found in label_kernel(kernel(GEMM, **idle))]
    for other in ("elementwise", "convert_fp16", "GammaBetaBackwardCUDAKernel", "summary_comma_command"):
        assert "tensor_core_underutilized" not in [found.label for found in label_kernel(kernel(other, **idle))]
    for product in (
        "implicit_convolve_sgemm",
        "conv2d_grouped_direct_kernel",
        "sm80_xmma_fprop",
        "my_wgmma_kernel",
        "mma",
    ):
        assert "tensor_core_underutilized" in [found.label for found in label_kernel(kernel(product, **idle))]
    busy = idle | {"tensor_pipe": 30.0}
    assert "tensor_core_underutilized" not in [found.label for found in label_kernel(kernel(GEMM, **busy))]
    unknown = {name: value for name, value in idle.items() if name != "tensor_pipe"}
    assert "tensor_core_underutilized" not in [found.label for found in label_kernel(kernel(GEMM, **unknown))]


def test_registers_and_shared_memory_may_limit_together(kernel) -> None:
    both = {"achieved_occupancy": 16.0, "theoretical_occupancy": 16.67, "block_limit_warps": 1.0}
    both |= {"block_limit_registers": 1.0, "block_limit_shared_memory": 1.0}
    labels = [found.label for found in label_kernel(kernel(**LATENCY_BOUND, **both))]
    assert {"occupancy_limited_by_registers", "occupancy_limited_by_shared_memory"} <= set(labels)
    assert "occupancy_limited_by_block_size" not in labels


def test_kernel_without_metrics_is_labelled_insufficient(kernel) -> None:
    (label,) = label_kernel(kernel(duration=1.0))
    assert label.label == INSUFFICIENT
    assert label_kernel(kernel(**COMPUTE_BOUND)) == ()


def test_scores_are_shares(kernel) -> None:
    worst = LATENCY_BOUND | WAITS | {"achieved_occupancy": 0.0, "eligible_warps": 0.0, "no_eligible": 100.0}
    worst |= {"sectors_per_load": 64.0, "dram_throughput": 104.0, "l1_hit_rate": 0.0, "l2_hit_rate": 100.39}
    found = label_kernel(kernel(**worst))
    assert found == tuple(sorted(found, key=lambda label: (-label.score, label.label)))
    assert all(0.0 <= label.score <= 1.0 for label in found)


@pytest.mark.parametrize(("pct", "expected"), [(60.0, True), (59.9, False)])
def test_traffic_is_estimated_from_the_data_sheet_without_a_counter(kernel, pct: float, expected: bool) -> None:
    summary = kernel(compute_throughput=20.0)
    (label,) = label_kernel(summary, Estimates(dram_pct=pct))
    assert (label.label == "memory_bandwidth_bound") is expected
    assert ("data sheet" in label.evidence) is expected
    counted = kernel(**MEMORY_BOUND, dram_throughput=10.0)
    assert "memory_bandwidth_bound" not in [one.label for one in label_kernel(counted, Estimates(dram_pct=90.0))]


def test_occupancy_is_estimated_from_limits_without_a_counter(kernel) -> None:
    by_registers = Estimates(occupancy_pct=25.0, limiters=(Limiter.REGISTERS,))
    (label,) = label_kernel(kernel(registers_per_thread=128.0), by_registers)
    assert label.label == "occupancy_limited_by_registers"
    assert "how much is achieved was not measured" in label.evidence
    achieved = label_kernel(kernel(**LATENCY_BOUND, achieved_occupancy=24.0), by_registers)
    assert [one.label for one in achieved] == ["occupancy_limited_by_registers"]
    (grid,) = label_kernel(kernel(**LATENCY_BOUND, achieved_occupancy=10.0), by_registers)
    assert grid.label == "occupancy_limited"
    enough = label_kernel(kernel(**LATENCY_BOUND, achieved_occupancy=60.0), by_registers)
    assert enough == ()
    counted = kernel(**LATENCY_BOUND, achieved_occupancy=40.0, theoretical_occupancy=100.0)
    assert [one.label for one in label_kernel(counted, by_registers)] == ["occupancy_limited"]


@pytest.mark.parametrize(
    ("name", "sectors", "scattered"),
    [
        ("k(const float *, float *, int)", 12.0, True),
        ("k(const float *, float *, int)", 8.0, False),
        ("void k<float>(T1 *)", 12.0, False),
        ("void stencil<double>(const T1 *, T1 *)", 8.97, False),
        ("void stencil<double>(const T1 *, T1 *)", 12.0, True),
        ("k(const float4 *, float4 *)", 17.0, False),
        ("k(const float4 *, float4 *)", 32.0, True),
        ("k(const __half *, __half *)", 5.0, True),
        ("k(const __half *, __half *)", 4.5, False),
    ],
)
def test_sectors_are_judged_by_the_size_of_words(kernel, name: str, sectors: float, scattered: bool) -> None:
    for use in ("load", "store"):
        found = label_kernel(kernel(name, **MEMORY_BOUND, **{f"sectors_per_{use}": sectors}))
        assert ("uncoalesced_access" in [one.label for one in found]) is scattered


def test_a_library_chooses_the_launch_of_its_kernels(kernel) -> None:
    limited = LATENCY_BOUND | {"achieved_occupancy": 12.0, "theoretical_occupancy": 12.5, "block_limit_registers": 1.0}
    for name in ("ampere_sgemm_128x64_nn", "void cutlass::Kernel2<x>(int)", "nvjet_hsh_128x64_64x8_1x2_h_bz_TNT"):
        assert label_kernel(kernel(name, **limited, waves=1.0)) == ()
        assert label_kernel(kernel(name, **limited, waves=0.5)) != ()
    assert label_kernel(kernel("my_kernel", **limited, waves=1.0)) != ()
