"""What changed, layer by layer."""

from __future__ import annotations

import pytest
from compared_layers import MIX, function, launch, ncu, ptx, source

from frx_graph.analyzers.comparison.matching import Change, Winner
from frx_graph.analyzers.comparison.ncu_diff import NcuDiff, compare_ncu, match_measured
from frx_graph.analyzers.comparison.static_diff import StrideChange, compare_ptx_files, compare_sources
from frx_graph.analyzers.layers import NcuLayer
from frx_graph.evidence.cuda.source import Space
from frx_graph.evidence.ptx.instruction import Kind
from frx_graph.evidence.ptx.ptxas import Assembled

ROWS = "__global__ void turn(float* in, float* out, int n) { int x = threadIdx.x; out[x] = in[x * n]; }"
TILED = """__global__ void turn(float* in, float* out, int n) {
  __shared__ float tile[32][33];
  tile[threadIdx.y][threadIdx.x] = in[threadIdx.y * n + threadIdx.x];
  __syncthreads();
  out[threadIdx.y * n + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}"""


def by_metric(changes: tuple[Change, ...]) -> dict[str, tuple[float | None, float | None]]:
    return {change.metric: (change.a, change.b) for change in changes}


def test_fixed_source_resolves_its_finding() -> None:
    found = compare_sources(source(ROWS), source(TILED))
    (kernel,) = found.kernels
    known = by_metric(kernel.changes)
    assert known["strided_accesses"] == (1, 0)
    assert known["coalesced_accesses"] == (1, 2)
    assert known["static_shared_bytes"] == (0, 32 * 33 * 4)
    assert known["barriers"] == (0, 1)
    assert known["bank_conflict"] == (None, None)
    assert known["block_threads"] == (None, None)
    assert kernel.strides == (StrideChange("in", Space.GLOBAL, ("n",), ("1",)),)
    assert [(one.code, one.resolved) for one in found.findings] == [("uncoalesced_access", True)]


def test_ptx_with_and_without_the_assembler() -> None:
    spills, clean = Assembled(255, 64, 32, 48, 0), Assembled(64, 0, 0, 0, 0)
    after = function(mix={**MIX, Kind.FP64: 8})
    told = compare_ptx_files(ptx(function(), assembled=[spills]), ptx(after, assembled=[clean]))
    (kernel,) = told.kernels
    known = by_metric(kernel.changes)
    assert kernel.assembled
    assert known["registers"] == (255, 64)
    assert known["spill_stores"] == (32, 0)
    assert by_metric(kernel.mix)["fp64"] == (0, 8)
    assert {one.code: one.resolved for one in told.findings} == {"ptx_register_spills": True, "ptx_fp64_usage": False}
    virtual = compare_ptx_files(ptx(function(virtual=900)), ptx(function(virtual=50)))
    assert not virtual.kernels[0].assembled
    assert by_metric(virtual.kernels[0].changes)["registers"] == (None, None)
    assert by_metric(virtual.kernels[0].changes)["virtual_registers"] == (900, 50)
    assert not any(one.resolved or one.introduced for one in virtual.findings)


def test_larger_share_of_global_memory_is_not_a_regression() -> None:
    heavy = function(mix={Kind.FP32: 20, Kind.GLOBAL_LOAD: 20})
    found = compare_ptx_files(ptx(function()), ptx(heavy))
    assert [one.code for one in found.findings] == ["ptx_global_memory_heavy"]
    assert not found.findings[0].introduced


def diff(a: NcuLayer, b: NcuLayer) -> NcuDiff:
    return compare_ncu(a, b, match_measured(a, b))


def test_counters_keep_their_units_and_what_is_missing_stays_missing() -> None:
    a = ncu(launch(us=40, dram_throughput=40.0, l2_hit_rate=10.0, stall_share__barrier=12.5, stall_share__wait=3.0))
    b = ncu(launch(us=20, dram_throughput=92.0, sectors_per_load=4.0, stall_share__barrier=50.0))
    (kernel,) = diff(a, b).kernels
    known = by_metric(kernel.changes)
    assert known["dram_throughput"] == (40.0, 92.0)
    assert known["l2_hit_rate"] == (10.0, None)
    assert known["sectors_per_load"] == (None, 4.0)
    assert known["seconds_per_launch"] == pytest.approx((40e-6, 20e-6))
    assert "l1_hit_rate" not in known
    assert by_metric(kernel.stalls) == {"barrier": (12.5, 50.0), "wait": (3.0, None)}
    assert kernel.faster is Winner.B


def test_averages_are_weighted_by_time() -> None:
    a = ncu(*(launch(us=10, dram_throughput=10.0) for _ in range(9)), launch(us=910, dram_throughput=90.0))
    (kernel,) = diff(a, ncu(launch(us=1000, dram_throughput=10.0))).kernels
    assert by_metric(kernel.changes)["dram_throughput"] == (pytest.approx(82.8), 10.0)


STREAMS = {"compute_throughput": 20.0, "memory_throughput": 92.0, "dram_throughput": 92.0}
SLOW = {"compute_throughput": 20.0, "memory_throughput": 40.0, "dram_throughput": 40.0}
STRIDED = {**SLOW, "sectors_per_load": 30.0}


@pytest.mark.parametrize(("us", "introduced"), [(100.0, ["uncoalesced_access"]), (40.0, [])])
def test_bottleneck_of_the_faster_side_is_not_a_regression(us: float, introduced: list[str]) -> None:
    found = diff(ncu(launch(us=90, **STREAMS)), ncu(launch(us=us, **STRIDED)))
    assert [one.code for one in found.findings if one.introduced] == introduced


def test_a_kernel_that_gets_to_the_limit_of_memory_has_no_new_defect() -> None:
    for us in (50.0, 90.0, 120.0):
        found = diff(ncu(launch(us=90, **SLOW)), ncu(launch(us=us, **STREAMS)))
        assert not any(one.introduced for one in found.findings)


def test_a_bank_conflict_that_went() -> None:
    turned = TILED.replace("33", "32")
    (kernel,) = compare_sources(source(turned), source(TILED)).kernels
    assert by_metric(kernel.changes)["bank_conflict"] == (32, None)
    assert kernel.strides == (StrideChange("tile", Space.SHARED, ("1", "32"), ("1", "33")),)
