"""Rule cards: what each rule finds, its cost, its fix, and the safety of the fix. They are user documentation.

One YAML file a rule, `layout/FRXnnn.yaml`; the file name is the code. `frx rules` prints them.
"""

from __future__ import annotations

import difflib
import functools
import re
from typing import Annotated

from pydantic import Field, StringConstraints

from frx_graph.errors import OptionError
from frx_graph.records import Effort, Risk
from frx_graph.rules.card_file import Prose, StrictModel, load_cards

Code = Annotated[str, StringConstraints(pattern=r"^FRX\d{3}$")]
Url = Annotated[str, StringConstraints(pattern=r"^https://\S+$")]


class Example(StrictModel):
    """The smallest program that the rule finds, and the same program fixed. Python source."""

    before: Prose
    after: Prose


class RuleCard(StrictModel):
    """One rule, for people. `safety` says what the fix can change besides speed; `risk` and `effort` are the usual
    ones, which a finding may raise or lower for its own case."""

    code: Code
    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
    title: Annotated[Prose, StringConstraints(max_length=80)]
    what: Prose
    why: Prose
    fix: Prose
    example: Example
    safety: Prose
    effort: Effort
    risk: Risk
    references: Annotated[tuple[Url, ...], Field(min_length=1)]


@functools.cache
def load_all_cards() -> tuple[RuleCard, ...]:
    """Return every card, ordered by code."""
    return load_cards("layout", RuleCard, "code")


def load_card(code: str) -> RuleCard:
    """Return the card of a rule's code, in either case, or name. Raises `OptionError`, with the nearest code, if
    unknown."""
    cards = {word: card for card in load_all_cards() for word in (card.code, card.name.upper())}
    wanted = code.strip().upper()
    if wanted in cards:
        return cards[wanted]
    digits = re.search(r"\d+", wanted)
    # A number with too few or too many digits is read as a number, not as the most similar code.
    same_number = f"FRX{int(digits[0]):03d}" if digits else ""
    near = [same_number] if same_number in cards else difflib.get_close_matches(wanted, cards, n=1, cutoff=0.5)
    listed = "`frx rules` lists them all"
    raise OptionError(f"unknown rule {code!r}", f"did you mean {cards[near[0]].code}? {listed}" if near else listed)
