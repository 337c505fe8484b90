"""Pages that are made when the documentation is built: one for each command, from its help, one for each card of
`rules/`, and the glossary of labels, from the tables of the pages that define them. A hook of mkdocs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.core import TyperArgument, TyperOption

from frx_graph.analyzers.kernels.recommendations import LABEL_TITLES
from frx_graph.cli.command_tree import DescribedCommand, describe_commands, format_default, list_choices
from frx_graph.cli.commands import COMMANDS
from frx_graph.rules.cuda_card import CudaCard, load_cuda_cards
from frx_graph.rules.recommendation_card import RecommendationCard, index_cards_by_label, load_recommendations
from frx_graph.rules.rule_card import RuleCard, load_all_cards

_SPECIAL = re.compile(r"([\\*_<>\[\]#|~])")
_CODE = re.compile(r"(`[^`]*`)")
_ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (.*?) \|", re.MULTILINE)
_DEFINED_IN = {"kernels.md": "Of a kernel", "traces.md": "In a trace", "runs.md": "In a run"}
"""Pages with a table of labels, and of what these are there."""
_COMMANDS, _LAYOUT, _CUDA, _ADVICE = "commands", "rules/layout", "rules/cuda", "rules/advice"
Pages = dict[str, str]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The generated pages' places in the navigation."""
    for section in config.nav or ():
        if "Commands" in section:
            section["Commands"] = [
                *section["Commands"],
                *({f"frx {name}": f"{_COMMANDS}/{name}.md"} for name in COMMANDS),
            ]
        if "Rules" in section:
            section["Rules"] = [
                {"Layout": [f"{_LAYOUT}/index.md", *({c.code: f"{_LAYOUT}/{c.code}.md"} for c in load_all_cards())]},
                {"CUDA source": [f"{_CUDA}/index.md", *({c: f"{_CUDA}/{c}.md"} for c in sorted(load_cuda_cards()))]},
                {"Advice": [f"{_ADVICE}/index.md", *({c.id: f"{_ADVICE}/{c.id}.md"} for c in load_recommendations())]},
                *section["Rules"],
            ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The generated pages themselves."""
    for name, text in generated_pages(Path(config.docs_dir)).items():
        files.append(File.generated(config, name, content=text))
    return files


def generated_pages(docs: Path) -> Pages:
    """Text by path."""
    pages: Pages = {}
    commands = list(describe_commands())
    for name in COMMANDS:
        own = [each for each in commands if each.path[:1] == (name,)]
        pages[f"{_COMMANDS}/{name}.md"] = "\n".join(_command_page(own))
    pages |= {f"{_LAYOUT}/{card.code}.md": _layout_page(card) for card in load_all_cards()}
    pages |= {f"{_CUDA}/{card.id}.md": _cuda_page(card) for card in load_cuda_cards().values()}
    pages |= {f"{_ADVICE}/{card.id}.md": _advice_page(card) for card in load_recommendations()}
    pages[f"{_LAYOUT}/index.md"] = _index(
        "Layout rules",
        "What `frx advise` finds. `frx rules FRX001` prints a card on the terminal.",
        ((card.code, f"{card.code} `{card.name}`", card.title) for card in load_all_cards()),
    )
    pages[f"{_CUDA}/index.md"] = _index(
        "Rules of CUDA source",
        "What `frx analyze kernel.cu` finds, see [CUDA source](../../cuda_source.md).",
        ((card.id, f"`{card.id}`", card.title) for card in sorted(load_cuda_cards().values(), key=lambda one: one.id)),
    )
    pages[f"{_ADVICE}/index.md"] = _index(
        "Advice",
        "What is recommended about a [label](../../labels.md), and how to see that it has helped.",
        ((card.id, f"`{card.id}`", card.title) for card in load_recommendations()),
    )
    pages["labels.md"] = "\n".join(_labels_page(_definitions(docs)))
    return pages


def prose(text: str) -> str:
    """A card's text as Markdown: what is between backticks stays code, all else means itself."""
    pieces = _CODE.split(" ".join(text.split()))
    return "".join(
        piece if piece.startswith("`") and len(piece) > 1 else _SPECIAL.sub(r"\\\1", piece) for piece in pieces
    )


def paragraphs(text: str) -> str:
    """The same of a text of several."""
    return "\n\n".join(prose(part) for part in text.split("\n\n") if part.strip())


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {prose(text)}" for text in texts)


def _command_page(commands: list[DescribedCommand]) -> Iterator[str]:
    for command in commands:
        words = " ".join(("frx", *command.path))
        yield f"{'#' * len(command.path)} {words}\n\n{prose(command.help)}\n"
        if command.below:
            continue
        arguments = " ".join(map(_typed, command.arguments))
        yield f"```text\n{words} [OPTIONS] {arguments}".rstrip() + "\n```\n"
        if command.arguments:
            yield "| argument | what it is |\n|---|---|"
            yield from (f"| `{(each.name or '').upper()}` | {prose(each.help or '')} |" for each in command.arguments)
            yield ""
        yield "| option | what it does |\n|---|---|"
        yield from (f"| {_option_names(each)} | {_option_text(each)} |" for each in command.options)
        yield ""


def _typed(argument: TyperArgument) -> str:
    name = (argument.name or "").upper()
    name = f"-- {name}..." if argument.name == "command" else f"{name}..." if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def _option_names(option: TyperOption) -> str:
    return ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))


def _option_text(option: TyperOption) -> str:
    parts = [prose(option.help or "")]
    if choices := list_choices(option):
        parts.append("One of " + ", ".join(f"`{choice}`" for choice in choices) + ".")
    if (default := format_default(option)) is not None:
        parts.append(f"Default: `{default}`.")
    return " ".join(parts)


def _layout_page(card: RuleCard) -> str:
    return f"""# {card.code} {prose(card.name)}

{prose(card.title)}

## What it finds

{paragraphs(card.what)}

## Why it costs

{paragraphs(card.why)}

## Fix

{paragraphs(card.fix)}

```python
# before
{card.example.before.rstrip()}

# after
{card.example.after.rstrip()}
```

## How safe it is

{paragraphs(card.safety)}

Effort: {card.effort}. Risk: {card.risk}. A finding says its own where they are others.

## References

{chr(10).join(f"- <{url}>" for url in card.references)}
"""


def _cuda_page(card: CudaCard) -> str:
    line = "" if card.confirm.threshold is None else f" The line is {card.confirm.threshold:g}."
    return f"""# {prose(card.id)}

{prose(card.title)}

Severity {card.severity}, category {prose(card.category)}. Of what it found in code that it was not written for,
{card.confidence:.0%} was right ([CUDA source](../../cuda_source.md)).

## Why it costs

{paragraphs(card.why)}

## Fix

{paragraphs(card.fix)}

{_bullets(card.actions)}

## What would confirm it

`{card.confirm.metric}`: {prose(card.confirm.expected)}.{line} After the fix it should {card.confirm.direction}.
"""


def _advice_page(card: RecommendationCard) -> str:
    steps = "\n".join(
        f"| `{step.metric}` | {prose(step.label)} | {step.direction} | {prose(step.expected)} |"
        for step in card.validation
    )
    risks = "" if not card.risks else f"\n## What can go wrong\n\n{_bullets(card.risks)}\n"
    labels = ", ".join(f"[`{label}`](../../labels.md#{label})" for label in card.triggered_by)
    return f"""# {prose(card.id)}

{prose(card.title)}

For {labels}. Effort: {card.effort}. Risk: {card.risk}. Tier {card.tier}.

## Why

{paragraphs(card.why)}

## What to do

{_bullets(card.actions)}

## How to see that it has helped

| metric | what it is | direction | expected |
|---|---|---|---|
{steps}
{risks}"""


def _index(title: str, about: str, rows: Iterable[tuple[str, str, str]]) -> str:
    lines = "\n".join(f"| [{name}]({page}.md) | {prose(says)} |" for page, name, says in rows)
    return f"# {title}\n\n{about}\n\n| rule | what it is about |\n|---|---|\n{lines}\n"


def _definitions(docs: Path) -> Mapping[str, list[tuple[str, str]]]:
    """For each label the pages whose tables define it, and what they say. Which refer to another's are left out."""
    found: dict[str, list[tuple[str, str]]] = {}
    for page in _DEFINED_IN:
        for names, says in _ROW.findall((docs / page).read_text(encoding="utf-8")):
            for name in _full_names(re.findall(r"`(\w+)`", names)):
                if name in LABEL_TITLES and not says.startswith("as in "):
                    found.setdefault(name, []).append((page, says))
    return found


def _full_names(names: list[str]) -> list[str]:
    """`occupancy_limited_by_registers`, `_by_shared_memory` is short for two that begin alike."""
    stem = names[0].partition("_by_")[0]
    return [f"{stem}{name}" if name.startswith("_by_") else name for name in names]


def _labels_page(definitions: Mapping[str, list[tuple[str, str]]]) -> Iterator[str]:
    yield "# Labels\n"
    yield (
        "What reports call the things that hold a program back. Labels are stable: they are the same on the terminal,"
        " in JSON, and from version to version.\n"
    )
    advice = index_cards_by_label()
    for label in sorted({*LABEL_TITLES, *advice}):
        yield f"## `{label}` {{ #{label} }}\n"
        if label in LABEL_TITLES:
            yield f"{prose(LABEL_TITLES[label])}.\n"
        for page, says in definitions.get(label, ()):
            yield f"{_DEFINED_IN[page]}: {says} ([more]({page})).\n"
        if label in advice:
            yield "Advice: " + ", ".join(f"[{prose(c.title)}]({_ADVICE}/{c.id}.md)" for c in advice[label]) + ".\n"
