import json

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from frx_graph.analyzers.kernels.recommendations import LABEL_TITLES
from frx_graph.cli.rules import Entry, Label, find_entries, get_name, list_entries, print_card, rules
from frx_graph.errors import OptionError
from frx_graph.rules.cuda_card import load_cuda_cards
from frx_graph.rules.recommendation_card import load_recommendations
from frx_graph.rules.rule_card import RuleCard, load_all_cards, load_card


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(rules)
    return app


def test_the_list_has_every_rule(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    listed = [line.split()[:2] for line in result.output.splitlines() if line.startswith("FRX")]
    assert listed == [[card.code, card.name] for card in load_all_cards()]


@pytest.mark.parametrize("card", load_all_cards(), ids=lambda card: card.code)
def test_a_card_reads_at_80_columns_without_colour(app: typer.Typer, card: RuleCard) -> None:
    result = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"}).invoke(app, [card.code])
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    lines = result.output.splitlines()
    assert lines[0] == f"{card.code} {card.name}"
    assert [line for line in lines if len(line) > 80 and "https://" not in line] == []
    words = " ".join(result.output.split())
    for prose in (card.what, card.why, card.fix, card.safety):
        assert " ".join(prose.split()) in words
    for source in (card.example.before, card.example.after):
        assert "".join(f"  {line}".rstrip() + "\n" for line in source.splitlines()) in "".join(
            line.rstrip() + "\n" for line in lines
        )
    assert all(url in words for url in card.references)


def test_colour_where_the_terminal_has_it() -> None:
    console = Console(force_terminal=True, width=80, color_system="standard", no_color=False)
    with console.capture() as capture:
        print_card(load_card("FRX001"), console)
    assert "\x1b[1m" in capture.get()


def test_json_of_one_card_and_of_all(app: typer.Typer) -> None:
    one = json.loads(CliRunner().invoke(app, ["FRX007", "--format", "json"]).output)
    assert one.pop("kind") == "layout"
    assert RuleCard.model_validate(one) == load_card("FRX007")
    every = json.loads(CliRunner().invoke(app, ["--format", "json"]).output)
    layout = [
        {name: value for name, value in each.items() if name != "kind"} for each in every if each["kind"] == "layout"
    ]
    assert [RuleCard.model_validate(each) for each in layout] == list(load_all_cards())
    assert {each["id"] for each in every if each["kind"] == "cuda"} == set(load_cuda_cards())
    assert {each["label"] for each in every if each["kind"] == "label"} == set(LABEL_TITLES)
    assert [each["id"] for each in every if each["kind"] == "recommendation"] == [c.id for c in load_recommendations()]


@pytest.mark.parametrize("entry", [entry for entry in list_entries() if not isinstance(entry, RuleCard)], ids=get_name)
def test_labels_and_other_cards_are_printed_by_name(app: typer.Typer, entry: Entry) -> None:
    result = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"}).invoke(app, [get_name(entry)])
    assert result.exit_code == 0
    assert " ".join(entry.title.split()) in " ".join(result.output.split())
    assert [line for line in result.output.splitlines() if len(line) > 80] == []
    for card in entry.cards if isinstance(entry, Label) else ():
        assert f"{card.id}: " in result.output


def test_a_name_of_a_label_and_a_rule_prints_both(app: typer.Typer) -> None:
    said = CliRunner().invoke(app, ["uncoalesced-access"]).output
    assert "uncoalesced_access in CUDA source" in said
    assert "rec_coalesce_global_loads" in said
    assert len(json.loads(CliRunner().invoke(app, ["uncoalesced_access", "--json"]).output)) == 2


def test_a_misspelt_label_is_named() -> None:
    with pytest.raises(OptionError, match="did you mean input_bound"):
        find_entries("inputbound")


def test_an_unknown_code_is_the_users_error(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["FRX999"])
    assert isinstance(result.exception, OptionError)
