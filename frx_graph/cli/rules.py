"""`frx rules`: list the rules and labels, or print one card."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from frx_graph.analyzers.kernels.recommendations import LABEL_TITLES
from frx_graph.cli.printing.output import FormatOption, JsonOption, TextOrJson, is_json, print_document
from frx_graph.errors import OptionError
from frx_graph.rules.cuda_card import CudaCard, load_cuda_cards
from frx_graph.rules.recommendation_card import RecommendationCard, index_cards_by_label, load_recommendations
from frx_graph.rules.rule_card import RuleCard, load_all_cards, load_card


def rules(
    code: Annotated[
        str | None,
        typer.Argument(help="A rule's code (FRX001) or name, a label of a run or kernel, or a card's name; none: all."),
    ] = None,
    format: FormatOption = TextOrJson.TEXT,
    as_document: JsonOption = False,
) -> None:
    """List the rules and labels, or print one card: what it finds, why it costs, the fix, how safe it is."""
    found = list_entries() if code is None else find_entries(code)
    if is_json(format, as_document):
        documents = [describe_entry(entry) for entry in found]
        print_document(documents[0] if code is not None and len(documents) == 1 else documents)
        return
    console = Console(highlight=False, markup=False)
    if code is None:
        print_list(console)
        return
    for number, entry in enumerate(found):
        if number:
            console.print()
        print_entry(entry, console)


@dataclass(frozen=True, slots=True)
class Label:
    """A bottleneck of a run, a trace or a kernel, with the cards that it calls for."""

    label: str
    title: str
    cards: tuple[RecommendationCard, ...]


Entry = RuleCard | CudaCard | RecommendationCard | Label


def list_entries() -> list[Entry]:
    """Return the layout rules, the labels, the recommendations and the rules for CUDA source, in this order."""
    return [*load_all_cards(), *list_labels(), *load_recommendations(), *load_cuda_cards().values()]


def list_labels() -> list[Label]:
    """Return all labels of runs and kernels."""
    cards = index_cards_by_label()
    return [Label(label, title, cards.get(label, ())) for label, title in LABEL_TITLES.items()]


def find_entries(name: str) -> list[Entry]:
    """Return what has this name: a label and a rule for CUDA source may share it. Raises `OptionError` if nothing has
    it."""
    wanted = name.strip().lower().replace("-", "_")
    named: list[Entry] = [entry for entry in list_entries() if get_name(entry) == wanted]
    if named:
        return named
    known = [get_name(entry) for entry in list_entries() if not isinstance(entry, RuleCard)]
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.8)
    if near:
        raise OptionError(f"unknown rule {name!r}", f"did you mean {near[0]}?")
    return [load_card(name)]


def get_name(entry: Entry) -> str:
    """Return the name by which an entry is found; a rule's code is found by `load_card`."""
    match entry:
        case RuleCard():
            return entry.name
        case Label():
            return entry.label
        case _:
            return entry.id


def describe_entry(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON, with its kind."""
    match entry:
        case RuleCard():
            return {"kind": "layout", **entry.model_dump(mode="json")}
        case CudaCard():
            return {"kind": "cuda", **entry.model_dump(mode="json")}
        case RecommendationCard():
            return {"kind": "recommendation", **entry.model_dump(mode="json")}
        case Label():
            cards = [card.id for card in entry.cards]
            return {"kind": "label", "label": entry.label, "title": entry.title, "recommendations": cards}


def print_list(console: Console) -> None:
    """Print one line per rule and label."""
    _print_table(
        console,
        ("Code", "Name", "Finds"),
        ((one.code, one.name, one.title) for one in load_all_cards()),
        whole=("Name",),
    )
    console.print()
    rows = ((one.label, one.title, str(len(one.cards))) for one in list_labels())
    _print_table(console, ("Label of a run or kernel", "Means", "Cards"), rows)
    console.print()
    severities = ((one.id, one.title, one.severity.value) for one in load_cuda_cards().values())
    _print_table(console, ("Rule for CUDA source", "Finds", "Severity"), severities)


def _print_table(
    console: Console, headings: Sequence[str], rows: Iterable[Sequence[str]], *, whole: Collection[str] = ()
) -> None:
    """Print a table whose first column, and those in `whole`, are not wrapped."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, style="" if number else "bold", no_wrap=not number or heading in whole)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_entry(entry: Entry, console: Console) -> None:
    """Print one card, or a label with its cards, wrapped to the console's width."""
    match entry:
        case RuleCard():
            print_card(entry, console)
        case CudaCard():
            _print_cuda_card(entry, console)
        case RecommendationCard():
            _print_recommendation(entry, console)
        case Label():
            console.print(Text(entry.label, style="bold"))
            console.print(Text(entry.title))
            for card in entry.cards:
                console.print()
                _print_recommendation(card, console)


def _print_cuda_card(card: CudaCard, console: Console) -> None:
    console.print(Text(f"{card.id} in CUDA source", style="bold"))
    console.print(Text(card.title))
    _print_section("Why it costs", card.why, console)
    _print_section("Fix", card.fix, console)
    _print_lines("What to do", card.actions, console)
    _print_section("Confirm", f"{card.confirm.metric}: {card.confirm.expected}", console)
    _print_section("Severity and confidence", f"{card.severity.value}, confidence {card.confidence:.2f}", console)


def _print_recommendation(card: RecommendationCard, console: Console) -> None:
    console.print(Text(f"{card.id}: {card.title}", style="bold"))
    _print_section("Why", card.why, console, space=False)
    _print_lines("What to do", card.actions, console)
    _print_lines("Validate", (f"{step.label}: {step.expected}" for step in card.validation), console)
    _print_lines("Mind", card.risks, console)
    _print_section("Effort and risk", f"effort {card.effort}, risk {card.risk}", console)


def _print_lines(heading: str, lines: Iterable[str], console: Console) -> None:
    listed = list(lines)
    if listed:
        _print_heading(heading, console)
    for line in listed:
        console.print(Padding(Text(f"- {' '.join(line.split())}"), (0, 0, 0, 2), expand=False))


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
