"""Cards of advice: each label has one, and each is well formed."""

from __future__ import annotations

import pytest

from frx_graph.errors import ContractError
from frx_graph.evidence.ncu.metrics import BY_NAME, resolve_metric
from frx_graph.rules.card_file import parse_card
from frx_graph.rules.recommendation_card import (
    OF_TRACES,
    RecommendationCard,
    index_cards_by_label,
    load_recommendations,
)

NCU_LABELS = (
    "memory_bandwidth_bound",
    "warp_stall_memory",
    "warp_stall_sync",
    "l1_cache_thrashing",
    "l2_cache_thrashing",
    "uncoalesced_access",
    "tensor_core_underutilized",
    "occupancy_limited",
    "occupancy_limited_by_registers",
    "occupancy_limited_by_shared_memory",
    "occupancy_limited_by_block_size",
    "low_warp_scheduler_utilization",
    "low_issue_efficiency",
    "insufficient_ncu_data",
)
PTX_LABELS = (
    "ptx_register_spills",
    "ptx_register_pressure",
    "ptx_global_memory_heavy",
    "ptx_fp64_usage",
    "ptx_branch_divergence_risk",
)
TRACE_LABELS = (
    "input_bound",
    "copy_bound",
    "sync_bound",
    "communication_bound",
    "launch_bound",
    "host_bound",
    "layout_churn",
    "memory_pressure",
    "shape_instability",
    "underutilized_gpu",
    "insufficient_telemetry",
)
CARD = """
id: rec_something
title: Do something
category: memory
triggered_by: [something]
why: Because.
actions: [Do it]
validation: [{metric: gpu__time_duration.sum, value: duration, label: duration, direction: decrease, expected: falls}]
effort: local
risk: LOW
tier: 1
"""


def test_every_label_has_a_card_and_no_card_is_without_one() -> None:
    assert set(index_cards_by_label()) == {*NCU_LABELS, *PTX_LABELS, *TRACE_LABELS}


@pytest.mark.parametrize("label", TRACE_LABELS)
def test_every_label_of_a_run_has_three_to_five_cards(label: str) -> None:
    assert 3 <= len(index_cards_by_label()[label]) <= 5


@pytest.mark.parametrize("card", load_recommendations(), ids=lambda card: card.id)
def test_what_a_card_asks_to_be_measured_can_be(card) -> None:
    for step in card.validation:
        # What traces are asked for, tests/passes/timeline knows.
        if step.metric.startswith(("ptxas -v: ", OF_TRACES)):
            continue
        unit = BY_NAME[step.value].unit if step.value in BY_NAME else ""
        read = resolve_metric(step.metric, "" if unit == "count" else unit)
        assert read is not None
        assert read.name == step.value


def test_a_card_is_named_as_its_file() -> None:
    assert parse_card(CARD, "rec_something.yaml", RecommendationCard, "id").id == "rec_something"
    with pytest.raises(ContractError, match="holds the card of rec_something"):
        parse_card(CARD, "rec_other.yaml", RecommendationCard, "id")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("tier: 1", "tier: 3", "tier"),
        ("risk: LOW", "risk: TINY", "risk"),
        ("actions: [Do it]", "actions: []", "actions"),
        ("why: Because.", "because: Because.", "why"),
        ("why: Because.", "why: [", "is not YAML"),
        ("direction: decrease", "direction: sideways", "validation.0.direction"),
    ],
)
def test_malformed_cards_are_refused(before: str, after: str, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        parse_card(CARD.replace(before, after), "rec_something.yaml", RecommendationCard, "id")
