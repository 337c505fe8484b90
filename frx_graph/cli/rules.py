"""`frx rules`: list the rules, or print one rule's card."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from frx_graph.cli.printing.output import FormatOption, JsonOption, TextOrJson, is_json, print_document
from frx_graph.rules.rule_card import RuleCard, load_all_cards, load_card


def rules(
    code: Annotated[str | None, typer.Argument(help="A rule code (FRX001) or name; without it, all rules.")] = None,
    format: FormatOption = TextOrJson.TEXT,
    as_document: JsonOption = False,
) -> None:
    """List the rules, or print one rule's card: what it finds, why it costs, the fix, how safe it is."""
    card = load_card(code) if code is not None else None
    if is_json(format, as_document):
        documents = [each.model_dump(mode="json") for each in (load_all_cards() if card is None else (card,))]
        print_document(documents if card is None else documents[0])
        return
    console = Console(highlight=False, markup=False)
    if card is None:
        print_list(load_all_cards(), console)
    else:
        print_card(card, console)


def print_list(cards: tuple[RuleCard, ...], console: Console) -> None:
    """Print one line per rule: code, name, title."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("Code", style="bold", no_wrap=True)
    table.add_column("Name", no_wrap=True)
    table.add_column("Finds")
    for card in cards:
        table.add_row(card.code, card.name, card.title)
    console.print(table)


def print_card(card: RuleCard, console: Console) -> None:
    """Print the whole card, wrapped to the console's width. Code is not wrapped."""
    console.print(Text(f"{card.code} {card.name}", style="bold"))
    console.print(Text(card.title))
    for heading, prose in (("What", card.what), ("Why it costs", card.why), ("Fix", card.fix)):
        _print_section(heading, prose, console)
    _print_heading("Example", console)
    for caption, source in (("before", card.example.before), ("after", card.example.after)):
        console.print(Text(f"  # {caption}", style="dim"))
        # Text neither pads nor wraps, unlike Syntax, so code copied from the terminal equals the card's.
        console.print(Text(textwrap.indent(source, "  ")), soft_wrap=True)
        console.print()
    _print_section("Safety", card.safety, console, space=False)
    _print_heading("Effort and risk", console)
    console.print(Text(f"  effort {card.effort}, risk {card.risk}"))
    _print_heading("References", console)
    for url in card.references:
        console.print(Text(f"  {url}"), soft_wrap=True)


def _print_heading(heading: str, console: Console, *, space: bool = True) -> None:
    if space:
        console.print()
    console.print(Text(heading, style="bold"))


def _print_section(heading: str, prose: str, console: Console, *, space: bool = True) -> None:
    _print_heading(heading, console, space=space)
    for index, paragraph in enumerate(prose.split("\n\n")):
        if index:
            console.print()
        console.print(Padding(Text(" ".join(paragraph.split())), (0, 0, 0, 2), expand=False))
