"""The rule cards by code, for the formats that explain rules."""

from __future__ import annotations

from collections.abc import Mapping

from frx_graph.rules.rule_card import RuleCard, all_cards

Cards = Mapping[str, RuleCard]


def shipped_cards() -> Cards:
    """The cards of the package."""
    return {card.code: card for card in all_cards()}
