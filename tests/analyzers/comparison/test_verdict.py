"""Who is better, by which evidence, and what speaks against it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compared_layers import function, launch, measured, ncu, ptx, source

from frx_graph.analyzers.comparison.comparison import Comparison, compare_layers
from frx_graph.analyzers.comparison.matching import Winner
from frx_graph.analyzers.comparison.scorecard import Basis
from frx_graph.analyzers.comparison.tradeoffs import Kind, Tradeoff
from frx_graph.analyzers.layers import Layers
from frx_graph.evidence.ptx.ptxas import Assembled
from frx_graph.rules.gpu_profile import GpuProfile, require_gpu

EMPTY = "__global__ void f(float* a) { a[threadIdx.x] = 1; }"
STRIDED = "__global__ void f(float* a) { a[32 * threadIdx.x] = 1; }"


def compare(a: Layers, b: Layers, *, whole_runs: bool = False) -> Comparison:
    return compare_layers(a, b, "a.csv", "b.csv", whole_runs=whole_runs)


def tradeoff(found: Comparison, kind: Kind) -> Tradeoff | None:
    return next((one for one in found.tradeoffs if one.kind is kind), None)


def at(us: float | None, dram: float) -> Layers:
    return measured(launch(us=us, dram_throughput=dram, memory_throughput=dram, compute_throughput=20.0))


def test_more_dram_in_less_time_wins() -> None:
    found = compare(at(100, 40.0), at(45, 92.0))
    assert (found.verdict.winner, found.verdict.basis) == (Winner.B, Basis.TIME)
    assert found.regressions == ()
    assert tradeoff(found, Kind.TIME_AGAINST_SCORES) is None


def test_more_dram_in_more_time_does_not() -> None:
    found = compare(at(45, 40.0), at(100, 92.0))
    assert (found.verdict.winner, found.verdict.basis) == (Winner.A, Basis.TIME)
    against = tradeoff(found, Kind.TIME_AGAINST_SCORES)
    assert against is not None
    assert against.winner is Winner.A


def test_without_times_more_of_the_limit_is_not_worse() -> None:
    found = compare(at(None, 40.0), at(None, 92.0))
    assert (found.verdict.winner, found.verdict.basis) == (Winner.B, Basis.MEASURED_SCORES)


def test_fewer_bytes_for_the_same_work_is_better_whatever_the_rate() -> None:
    """A tiled product moves less, at a lower rate, with fewer hits."""
    a = measured(launch(us=100, dram_throughput=92.0, l2_hit_rate=80.0, dram_bytes=400e6))
    b = measured(launch(us=50, dram_throughput=20.0, l2_hit_rate=30.0, dram_bytes=40e6))
    memory = compare(a, b).scorecard[1]
    assert (memory.winner, memory.score_a, memory.score_b) == (Winner.B, pytest.approx(0.1), 1.0)
    # Of other work the bytes say nothing.
    twice = measured(*(launch(us=50, dram_throughput=20.0, dram_bytes=40e6) for _ in range(2)))
    assert [one.name for one in compare(a, twice).scorecard[1].components] == ["dram_throughput"]


@pytest.mark.parametrize(("us", "winner"), [(99.0, Winner.TIE), (101.0, Winner.TIE), (95.0, Winner.B)])
def test_times_that_are_about_equal_are_a_tie(us: float, winner: Winner) -> None:
    assert compare(at(100, 50.0), at(us, 50.0)).verdict.winner is winner


def test_nothing_in_common_has_no_winner() -> None:
    found = compare(at(100, 40.0), Layers(source=source(EMPTY)))
    assert (found.verdict.winner, found.verdict.basis) == (Winner.UNKNOWN, Basis.NOTHING)
    assert found.verdict.reason is not None
    assert found.verdict.score_a is None
    memory = found.scorecard[1]
    assert (memory.available, memory.score_a, memory.score_b) == (False, 0.4, 1.0)
    assert {one.winner for one in found.scorecard} == {Winner.UNKNOWN}


def test_weights_are_normalized_over_what_both_sides_have() -> None:
    """Only launches and compute: 0.3 and 0.2 of 0.5."""
    a = measured(launch(us=None, issue_slots_busy=50.0, achieved_occupancy=50.0, registers_per_thread=64.0))
    b = measured(launch(us=None, issue_slots_busy=100.0, achieved_occupancy=50.0, dram_throughput=3.0))
    found = compare(a, b)
    assert [one.available for one in found.scorecard] == [False, False, True, True]
    assert found.verdict.score_a == pytest.approx(0.5)
    assert found.verdict.score_b == pytest.approx((0.3 * 1.0 + 0.2 * 0.5) / 0.5)
    assert found.scorecard[0].score_a == 0.5
    assert found.scorecard[0].score_b is None


def test_measurements_take_precedence_over_source() -> None:
    a = Layers(source=source(STRIDED), ncu=ncu(launch(us=None, sectors_per_load=4.0)))
    b = Layers(source=source(EMPTY), ncu=ncu(launch(us=None, sectors_per_load=32.0)))
    memory = compare(a, b).scorecard[1]
    assert (memory.winner, [one.evidence_a for one in memory.components]) == (Winner.A, ["ncu"])
    alone = compare(Layers(source=a.source), Layers(source=b.source))
    assert (alone.verdict.winner, alone.verdict.basis) == (Winner.B, Basis.STATIC_SCORES)
    assert [one.code for one in alone.resolved] == ["uncoalesced_access"]


def test_registers_are_scored_from_ptxas_or_ncu() -> None:
    spilling = Layers(ptx=ptx(function(), assembled=[Assembled(32, 512, 512, 512, 0)]))
    clean = Layers(ptx=ptx(function(), assembled=[Assembled(32, 0, 0, 0, 0)]))
    registers = compare(spilling, clean).scorecard[0]
    assert (registers.winner, registers.score_a, registers.score_b) == (Winner.B, pytest.approx(32 / (32 + 128)), 1.0)
    counted = compare(clean, measured(launch(registers_per_thread=128.0))).scorecard[0]
    assert (counted.winner, counted.score_b) == (Winner.A, 0.25)
    assert [(one.evidence_a, one.evidence_b) for one in counted.components] == [("ptxas", "ncu")]


@pytest.mark.parametrize(
    ("names", "share"),
    [
        (("NVIDIA GeForce RTX 4090",), 1.0),
        (("NVIDIA H100 80GB HBM3",), 0.8),
        # With an unknown one, or two kinds, the registers of most GPUs.
        (("a GPU of next year",), 0.8),
        (("NVIDIA GeForce RTX 4090", "NVIDIA H100 80GB HBM3"), 0.8),
    ],
)
def test_registers_are_measured_by_what_fits_on_the_gpu(names: tuple[str, ...], share: float) -> None:
    """All warps of a 4090 fit with 40 registers for each thread, those of an H100 with 32."""
    capability = {"NVIDIA GeForce RTX 4090": "8.9", "NVIDIA H100 80GB HBM3": "9.0"}
    launches = [
        replace(
            launch(registers_per_thread=40.0, name=name), device=str(i), compute_capability=capability.get(name, "99.0")
        )
        for i, name in enumerate(names)
    ]
    registers = compare(measured(*launches), measured(*launches)).scorecard[0]
    assert registers.score_a == pytest.approx(share)


def test_virtual_registers_score_nothing() -> None:
    found = compare(Layers(ptx=ptx(function(virtual=900))), Layers(ptx=ptx(function(virtual=20))))
    assert not found.scorecard[0].available
    assert found.verdict.winner is Winner.UNKNOWN


def test_full_occupancy_depends_on_the_gpu() -> None:
    """Devices of consumers have 1,536 threads for the same registers."""

    def at(registers: int, target: str) -> Layers:
        return Layers(ptx=ptx(function(), assembled=[Assembled(registers, 0, 0, 0, 0)], target=target))

    assert compare(at(32, "sm_89"), at(40, "sm_89")).scorecard[0].winner is Winner.TIE
    assert compare(at(32, "sm_90"), at(40, "sm_90")).scorecard[0].winner is Winner.A
    assert compare(at(32, "sm_89"), at(40, "sm_90")).scorecard[0].winner is Winner.A


def test_launches_are_judged_by_the_gpu_that_is_named() -> None:
    def launched(threads: int, gpu: GpuProfile | None = None) -> Layers:
        return Layers(source=source(f"{EMPTY} void run(float* a) {{ f<<<99, {threads}>>>(a); }}", gpu))

    assert compare(launched(768), launched(1024)).scorecard[3].winner is Winner.TIE
    ada = require_gpu("RTX4090")
    found = compare(launched(768, ada), launched(1024, ada))
    assert (found.scorecard[3].winner, found.scorecard[3].score_b) == (Winner.A, pytest.approx((1 + 2 / 3) / 2))


def test_kernels_without_a_counterpart_are_named_and_may_leave_it_open() -> None:
    kernel, helper = launch("f", us=50), launch("helper", us=60)
    fused = launch("f", us=70)
    found = compare(measured(kernel, helper), measured(fused))
    assert (found.verdict.winner, found.verdict.basis) == (Winner.UNKNOWN, Basis.NOTHING)
    assert [(one.of, one.winner) for one in found.verdict.time.readings] == [
        ("all kernels", Winner.B),
        ("matched kernels", Winner.A),
    ]
    unmatched = tradeoff(found, Kind.NOT_MATCHED)
    assert unmatched is not None
    assert (unmatched.only_a, unmatched.only_b) == (("helper",), ())
    # Who has profiled all of both programs knows that it is the same work.
    assert compare(measured(kernel, helper), measured(fused), whole_runs=True).verdict.winner is Winner.B
    # And where both ways to read it agree, that is enough.
    assert compare(measured(kernel, helper), measured(launch("f", us=40))).verdict.winner is Winner.B


def test_different_launch_counts_are_a_tradeoff_and_may_leave_the_winner_open() -> None:
    a, b = measured(launch(us=50)), measured(launch(us=40), launch(us=40))
    found = compare(a, b)
    assert found.verdict.winner is Winner.UNKNOWN
    assert tradeoff(found, Kind.LAUNCHES) is not None
    assert compare(a, measured(launch(us=20), launch(us=20))).verdict.winner is Winner.B


def test_other_gpus_have_other_times() -> None:
    found = compare(measured(launch(us=50)), measured(launch(us=20, name="NVIDIA A100-SXM4-80GB")))
    assert found.verdict.winner is Winner.UNKNOWN
    assert tradeoff(found, Kind.GPUS) is not None


def test_times_of_some_kernels_are_not_the_time_of_all() -> None:
    found = compare(measured(launch("f"), launch("g", us=None)), measured(launch("f"), launch("g")))
    assert found.verdict.time is None


def test_registers_against_occupancy() -> None:
    a = measured(launch(us=50, registers_per_thread=64.0, achieved_occupancy=60.0))
    b = measured(launch(us=50, registers_per_thread=32.0, achieved_occupancy=45.0))
    against = tradeoff(compare(a, b), Kind.REGISTERS_AGAINST_OCCUPANCY)
    assert against is not None
    assert against.winner is Winner.B
    other = measured(launch(us=50, registers_per_thread=32.0, achieved_occupancy=75.0))
    assert tradeoff(compare(a, other), Kind.REGISTERS_AGAINST_OCCUPANCY) is None


def test_spills_against_occupancy() -> None:
    def side(registers: int, spilled: int, occupancy: float) -> Layers:
        told = [Assembled(registers, spilled, spilled, spilled, 0)]
        return Layers(ptx=ptx(function(), assembled=told), ncu=ncu(launch(achieved_occupancy=occupancy)))

    against = tradeoff(compare(side(32, 400, 90.0), side(128, 0, 40.0)), Kind.SPILLS_AGAINST_OCCUPANCY)
    assert against is not None
    assert against.winner is Winner.B


@pytest.mark.parametrize(("us", "said"), [(None, True), (50.0, False)])
def test_a_large_shift_of_occupancy_asks_for_a_time(us: float | None, said: bool) -> None:
    a, b = measured(launch(us=us, achieved_occupancy=30.0)), measured(launch(us=us, achieved_occupancy=60.0))
    assert (tradeoff(compare(a, b), Kind.OCCUPANCY_SHIFT) is not None) is said


def test_clocks_and_kernels_that_got_slower() -> None:
    a = measured(launch("f", us=100, sm_frequency=1.2e9), launch("g", us=5))
    b = measured(launch("f", us=50, sm_frequency=1.9e9), launch("g", us=9))
    found = compare(a, b)
    assert found.verdict.winner is Winner.B
    clocks, slower = tradeoff(found, Kind.CLOCKS), tradeoff(found, Kind.SLOWER_KERNELS)
    assert clocks is not None
    assert slower is not None
    assert (clocks.winner, slower.winner, slower.kernel_b) == (Winner.B, Winner.A, "g")


def test_hit_rates_above_a_hundred_and_zero_times_harm_nothing() -> None:
    a = measured(launch(us=0.0, l1_hit_rate=100.39, achieved_occupancy=10.0, theoretical_occupancy=0.0))
    found = compare(a, a)
    assert found.verdict.time is None
    assert all(0 <= score <= 1 for one in found.scorecard if (score := one.score_a) is not None)


@pytest.mark.parametrize(("us", "known"), [(5.0, True), (50.0, False)])
def test_a_metric_of_few_kernels_is_not_that_of_the_side(us: float, known: bool) -> None:
    """A kernel that reads nothing has no rate of hits; if it takes little of the time, that does not matter."""
    side = measured(launch("f", us=100, dram_throughput=80.0), launch("g", us=us))
    assert [one.name for one in compare(side, side).scorecard[1].components] == (["dram_throughput"] if known else [])


def test_hit_rates_compare_only_where_memory_is_accessed_alike() -> None:
    """Scattered sectors are hit by the other threads of the warp, so whole ones lower the rate of hits."""
    scattered = launch(us=None, sectors_per_load=32.0, l1_hit_rate=90.0)
    whole, hit = (launch(us=None, sectors_per_load=4.0, l1_hit_rate=rate) for rate in (10.0, 60.0))
    found = compare(measured(scattered), measured(whole))
    assert [one.name for one in found.scorecard[1].components] == ["coalescing"]
    assert found.verdict.winner is Winner.B
    alike = compare(measured(whole), measured(hit))
    assert [one.name for one in alike.scorecard[1].components] == ["l1_hit_rate", "coalescing"]
    unknown = launch(us=None, l1_hit_rate=90.0)
    assert compare(measured(unknown), measured(unknown)).scorecard[1].components == ()
