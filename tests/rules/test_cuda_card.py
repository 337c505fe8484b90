"""Cards of CUDA source: each rule has one, and each is well formed."""

from __future__ import annotations

from importlib import resources

import pytest

from frx_graph.analyzers.cuda import DEVICE_DETECTORS, SOURCE_DETECTORS
from frx_graph.errors import ContractError
from frx_graph.rules.card_file import parse_card
from frx_graph.rules.cuda_card import Category, CudaCard, load_cuda_cards

TEXT = resources.files("frx_graph.rules").joinpath("cuda/warp_divergence.yaml").read_text(encoding="utf-8")


def test_every_detector_has_a_card_and_no_card_is_without_one() -> None:
    assert sorted(load_cuda_cards()) == sorted([*SOURCE_DETECTORS, *DEVICE_DETECTORS])
    assert len(SOURCE_DETECTORS) + len(DEVICE_DETECTORS) >= 22


def test_every_detector_is_in_the_file_of_its_rule() -> None:
    for rule, detect in {**SOURCE_DETECTORS, **DEVICE_DETECTORS}.items():
        assert detect.__module__ == f"frx_graph.analyzers.cuda.{rule}"


def test_every_category_has_rules() -> None:
    assert {card.category for card in load_cuda_cards().values()} == set(Category)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("severity: medium", "severity: terrible", "severity"),
        ("category: control_flow", "category: taste", "category"),
        ("confidence: 0.", "confidence: 1.", "confidence"),
        ("  direction: increase", "  direction: sideways", "confirm.direction"),
        ("fix:", "cure:", "fix"),
        ("id: warp_divergence", "id: other", "holds the card of other"),
    ],
)
def test_malformed_cards_are_refused(before: str, after: str, said: str) -> None:
    assert before in TEXT
    with pytest.raises(ContractError, match=said):
        parse_card(TEXT.replace(before, after), "warp_divergence.yaml", CudaCard, "id")
