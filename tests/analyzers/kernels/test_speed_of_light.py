"""The verdict is that of Nsight Compute's own rule."""

from __future__ import annotations

import pytest

from frx_graph.analyzers.kernels.speed_of_light import (
    MEMORY,
    SYNCHRONISATION,
    Bound,
    compute_warp_stalls,
    judge_speed_of_light,
)
from frx_graph.evidence.ncu.launch import NcuRule


@pytest.mark.parametrize(
    ("compute", "memory", "bound"),
    [
        (59.9, 59.9, Bound.LATENCY),
        (60.0, 59.9, Bound.BALANCED),
        (60.0, 50.0, Bound.COMPUTE),
        (50.0, 60.0, Bound.MEMORY),
        (50.1, 60.0, Bound.BALANCED),
        (97.0, 20.0, Bound.COMPUTE),
        (12.07, 93.99, Bound.MEMORY),
        (None, 79.9, Bound.UNKNOWN),
        (None, 80.0, Bound.MEMORY),
        (79.9, None, Bound.UNKNOWN),
        (80.0, None, Bound.COMPUTE),
        (None, None, Bound.UNKNOWN),
    ],
)
def test_the_bound_flips_at_its_lines(compute: float | None, memory: float | None, bound: Bound) -> None:
    values = {"compute_throughput": compute, "memory_throughput": memory}
    found = judge_speed_of_light({name: value for name, value in values.items() if value is not None})
    assert found.bound is bound
    assert (found.compute_pct, found.memory_pct) == (compute, memory)


def test_the_busiest_part_is_named() -> None:
    values = {"compute_throughput": 12.07, "memory_throughput": 93.99, "dram_throughput": 10.29, "l2_throughput": 93.99}
    found = judge_speed_of_light(values)
    assert (found.part, found.near_peak) == ("L2", True)
    assert judge_speed_of_light({**values, "memory_throughput": 55.0}).part is None


def test_memory_is_that_of_its_parts_where_only_these_were_measured() -> None:
    parts = {"compute_throughput": 10.0, "dram_throughput": 70.0, "l2_throughput": 30.0, "l1_throughput": 99.0}
    found = judge_speed_of_light(parts)
    assert (found.bound, found.memory_pct, found.part) == (Bound.MEMORY, 70.0, "DRAM")
    # DRAM alone, or L1 of its active cycles, says nothing of the whole.
    assert judge_speed_of_light({"compute_throughput": 10.0, "dram_throughput": 30.0}).bound is Bound.UNKNOWN


def rule(text: str, name: str = "SOLBottleneck") -> NcuRule:
    return NcuRule(name, "OPT", text, None)


MEMORY_RULE = rule("Memory is more heavily utilized than Compute: Look at the Memory Workload Analysis section.")
COMPUTE_RULE = rule("Compute is more heavily utilized than Memory: Look at the Compute Workload Analysis section.")
LOW_RULE = rule("This kernel exhibits low compute throughput and memory bandwidth utilization relative to the peak.")


@pytest.mark.parametrize(
    ("rules", "bound"),
    [
        ((MEMORY_RULE,), Bound.MEMORY),
        ((COMPUTE_RULE,), Bound.COMPUTE),
        ((rule("Compute and Memory are well-balanced: To reduce runtime, both must be reduced."),), Bound.BALANCED),
        ((LOW_RULE,), Bound.LATENCY),
        ((MEMORY_RULE, COMPUTE_RULE), Bound.UNKNOWN),
        ((rule(MEMORY_RULE.text, "HighPipeUtilization"),), Bound.UNKNOWN),
        ((), Bound.UNKNOWN),
    ],
)
def test_without_figures_the_rule_in_the_file_decides(rules: tuple[NcuRule, ...], bound: Bound) -> None:
    found = judge_speed_of_light({"compute_throughput": 6.8, "dram_throughput": 15.5}, rules)
    assert (found.bound, found.by_rule) == (bound, bound is not Bound.UNKNOWN)


def test_figures_come_before_the_rule() -> None:
    found = judge_speed_of_light({"compute_throughput": 90.0, "memory_throughput": 20.0}, (MEMORY_RULE,))
    assert (found.bound, found.by_rule) == (Bound.COMPUTE, False)


def test_shares_are_taken_as_they_are() -> None:
    found = compute_warp_stalls({"stall_share.long_scoreboard": 5.0, "stall_share.barrier": 2.0, "duration": 1.0})
    assert found is not None
    assert found.dominant == "long_scoreboard"
    assert found.sum_shares(MEMORY) == pytest.approx(0.05)
    assert found.sum_shares(SYNCHRONISATION) == pytest.approx(0.02)


def test_cycles_are_shares_of_all_cycles() -> None:
    cycles = {"long_scoreboard": 6.0, "barrier": 1.0, "selected": 1.0, "not_selected": 2.0}
    found = compute_warp_stalls({f"stall_cycles.{reason}": value for reason, value in cycles.items()})
    assert found is not None
    assert found.shares["long_scoreboard"] == pytest.approx(0.6)
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_partial_stall_reasons_give_no_shares() -> None:
    assert compute_warp_stalls({"stall_cycles.long_scoreboard": 6.0, "stall_cycles.barrier": 1.0}) is None
    assert compute_warp_stalls({}) is None
    assert compute_warp_stalls({"stall_cycles.selected": 0.0}) is None


def test_issuing_warps_are_not_stalled() -> None:
    found = compute_warp_stalls({"stall_cycles.selected": 9.0, "stall_cycles.wait": 1.0})
    assert found is not None
    assert found.dominant == "wait"
    assert found.sum_shares(SYNCHRONISATION) == 0.0
