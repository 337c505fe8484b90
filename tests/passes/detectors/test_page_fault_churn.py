"""FRX018 on counts and times that the tests make up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from frx_graph.measure.page_faults import AllocationCost, PageFaults
from frx_graph.passes.detectors.page_fault_churn import DETECTOR, FEWEST_FAULTS, detect
from frx_graph.records import Basis, Effort, Finding, Risk, Saving, Severity
from frx_graph.rules.rule_card import load_card
from frx_graph.support.allocator import POOLING_VARIABLES

MANY = PageFaults((3645, 4797, 4797, 5728, 4797), 4096)
COST = AllocationCost(MANY, pooled=PageFaults((0, 0, 1), 4096), saved_pct=(12.0, 21.5, 18.0))


@pytest.fixture
def findings(analyse):
    def find(cost: AllocationCost | None) -> list[Finding]:
        return list(detect(analyse(nn.Linear(4, 4), torch.randn(2, 4), allocation_cost=cost)))

    return find


def test_a_program_that_faults_its_memory_in_again(findings):
    (found,) = findings(COST)

    assert (found.rule, found.effort, found.risk) == ("FRX018", Effort.ONE_LINE, Risk.LOW)
    assert (found.basis, found.count_per_step, found.bytes_per_step) == (Basis.OBSERVED, 4797, None)
    assert (found.saving, found.severity) == (Saving(measured_pct=12.0), Severity.HIGH)
    assert found.title.startswith("4,797 page faults a call")
    texts = [fact.text for fact in found.evidence]
    assert "4,797 page faults, at least 18.7 MiB (median of 5 calls, from 3,645 to 5,728)" in texts[0]
    assert texts[1] == "pooled memory saves from 12.0 to 21.5% of a call in 3 pairs of processes"
    assert "a call makes 0 page faults (median of 3 calls" in texts[2]


def test_the_fix_names_each_way_and_its_price(findings):
    (found,) = findings(COST)

    card = load_card("FRX018")
    assert all(f"{name}={value}" in " ".join(card.fix.split()) for name, value in POOLING_VARIABLES.items())
    for name, value in POOLING_VARIABLES.items():
        assert f"{name}={value}" in found.fix
    for part in ('options={"pool_allocations": True}', "mallopt", "jemalloc or tcmalloc", "keeps its peak memory"):
        assert part in found.fix


def test_processes_that_had_few_are_mentioned(findings):
    (found,) = findings(replace(COST, processes=3))
    assert found.evidence[0].text.endswith("; 2 of 3 processes made few")


@pytest.mark.parametrize(
    ("cost", "reason"),
    [
        (AllocationCost(MANY), "it was not measured"),
        (replace(COST, saved_pct=(), disturbance="loaded"), "a measurement was disturbed (loaded)"),
    ],
)
def test_a_cost_that_is_unknown_is_not_claimed(findings, cost, reason):
    (found,) = findings(cost)
    assert (found.saving, found.severity) == (Saving(), Severity.INFO)
    assert reason in found.evidence[1].text


def test_a_gain_that_is_not_proved_is_not_claimed(findings):
    (found,) = findings(replace(COST, saved_pct=(-1.0, 4.0)))
    assert (found.saving, found.severity) == (Saving(), Severity.INFO)
    assert found.evidence[1].text.endswith(
        "from -1.0 to 4.0% of a call in 2 pairs of processes, so a gain is not proved"
    )


@pytest.mark.parametrize(
    "cost",
    [
        None,
        AllocationCost(PageFaults((FEWEST_FAULTS - 1,), 4096)),
        # The heap grew in one call.
        AllocationCost(PageFaults((0, 0, 90_000), 4096)),
        replace(COST, saved_pct=(-3.0, -0.5)),
    ],
    ids=["not measured", "few", "once", "no gain"],
)
def test_programs_without_a_problem(findings, cost):
    assert findings(cost) == []


def test_the_fewest_that_count(findings):
    assert len(findings(AllocationCost(PageFaults((FEWEST_FAULTS,), 4096)))) == 1


def test_name_and_code():
    assert (DETECTOR.rule, DETECTOR.name) == ("FRX018", "page_fault_churn")
