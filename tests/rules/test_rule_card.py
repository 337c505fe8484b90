import ast
import textwrap
from pathlib import Path

import pytest

from frx_graph.errors import ContractError, OptionError
from frx_graph.passes import detectors
from frx_graph.records import Effort, Risk
from frx_graph.rules.card_file import parse_card
from frx_graph.rules.rule_card import RuleCard, load_all_cards, load_card

LAYOUT = Path(__file__).parents[2] / "rules" / "layout"
ALL_CODES = [f"FRX{number:03d}" for number in range(1, 19)]

CARD = textwrap.dedent(
    """
    code: FRX042
    name: answer_copied
    title: An answer that is copied
    what: What it is.
    why: Why it costs.
    fix: What to do.
    example:
      before: x = 1
      after: x = 2
    safety: Exact.
    effort: one-line
    risk: LOW
    references: [https://pytorch.org/docs/stable/]
    """
)


def test_a_complete_card_parses() -> None:
    card = parse_card(CARD, "FRX042.yaml", RuleCard, "code")
    assert (card.code, card.name, card.effort, card.risk) == ("FRX042", "answer_copied", Effort.ONE_LINE, Risk.LOW)
    assert card.example.after == "x = 2"


@pytest.mark.parametrize("key", ["what", "why", "fix", "example", "safety", "effort", "risk", "references", "title"])
def test_a_missing_key_is_named(key: str) -> None:
    lines = CARD.splitlines(keepends=True)
    if key == "example":
        text = "".join(line for line in lines if not line.startswith(("example", "  ")))
    else:
        text = "".join(line for line in lines if not line.startswith(f"{key}:"))
    with pytest.raises(ContractError, match=rf"FRX042\.yaml: {key}"):
        parse_card(text, "FRX042.yaml", RuleCard, "code")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("risk: LOW", "risk: SMALL"), r"risk"),
        (("what: What it is.", "what: ''"), r"what"),
        (("references: [https://pytorch.org/docs/stable/]", "references: []"), r"references"),
        (("https://", "http://"), r"references\.0"),
        (("safety: Exact.", "safety: Exact.\nsaftey: Exact."), r"saftey"),
        (("code: FRX042", "code: FRX42"), r"code"),
        (("title: An", "title: [An"), r"not YAML"),
    ],
)
def test_malformed_card_error_names_the_place(change: tuple[str, str], complaint: str) -> None:
    assert change[0] in CARD
    with pytest.raises(ContractError, match=complaint):
        parse_card(CARD.replace(*change), "FRX042.yaml", RuleCard, "code")


def test_the_file_name_is_the_code() -> None:
    with pytest.raises(ContractError, match="FRX042") as caught:
        parse_card(CARD, "FRX043.yaml", RuleCard, "code")
    assert caught.value.hint == "name it FRX042.yaml"


def test_a_card_is_found_by_code_in_either_case_and_by_name() -> None:
    assert load_card("frx002") is load_card("FRX002") is load_card("contiguous_churn")


@pytest.mark.parametrize(
    ("typo", "meant"), [("FRX02", "FRX002"), ("FX001", "FRX001"), ("hidden_copies", "FRX001"), ("FRX0012", "FRX012")]
)
def test_an_unknown_code_names_the_nearest(typo: str, meant: str) -> None:
    with pytest.raises(OptionError) as caught:
        load_card(typo)
    assert typo in caught.value.message
    assert f"did you mean {meant}?" in caught.value.hint


def test_a_code_near_nothing_points_at_the_list() -> None:
    with pytest.raises(OptionError) as caught:
        load_card("zzz")
    assert caught.value.hint == "`frx rules` lists them all"


def test_every_rule_has_its_card_in_order() -> None:
    assert [card.code for card in load_all_cards()] == ALL_CODES


def test_every_file_of_the_folder_is_a_card() -> None:
    assert sorted(path.name for path in LAYOUT.iterdir()) == [f"{code}.yaml" for code in ALL_CODES]


def test_detectors_and_cards_are_the_same_rules() -> None:
    assert {d.rule: d.name for d in detectors.DETECTORS} == {card.code: card.name for card in load_all_cards()}


@pytest.mark.parametrize("card", load_all_cards(), ids=lambda card: card.code)
def test_examples_are_python_and_differ(card: RuleCard) -> None:
    before, after = ast.parse(card.example.before), ast.parse(card.example.after)
    assert ast.dump(before) != ast.dump(after)


def test_names_and_titles_are_unique() -> None:
    cards = load_all_cards()
    assert len({card.name for card in cards}) == len({card.title for card in cards}) == len(cards)
