"""Choose the findings that a report shows: of the rules asked for, and not suppressed in the source."""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.advice import Advice
from frx_graph.reports.advice.selection import RuleSelection, apply_selection, parse_selection
from frx_graph.reports.advice.suppressions import apply_suppressions
from frx_graph.rules.rule_card import load_all_cards


def parse_rules(select: Sequence[str], ignore: Sequence[str]) -> RuleSelection:
    """Return the selection that these codes and names of rules make. Raises `OptionError` for unknown ones."""
    return parse_selection(select, ignore, {card.code: card.name for card in load_all_cards()})


def choose_findings(advice: Advice, select: Sequence[str], ignore: Sequence[str]) -> Advice:
    """Return the advice without findings that were not asked for, or are suppressed. Raises `OptionError` for unknown
    rules."""
    return apply_suppressions(apply_selection(advice, parse_rules(select, ignore)))
