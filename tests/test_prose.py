"""The prose that users and contributors read is plain English: no retired phrases, no sentence that runs on."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
LONGEST, MEAN = 40, 20
"""Words in a sentence: no sentence is longer, and a page's mean is below. Cells of tables do not enter the mean."""

RETIRED = (
    r"of ours",
    r"of its",
    r"of (?:yours|mine|theirs)",
    r"(?:stands|lies|stood) ",
    r"stored anew",
    r"anew",
    r"(?:is|are|be|been) told",
    r"(?:tells?|told) of",
    r"(?:nobody|somebody|whoever|whatever it)",
    r"(?:speaks?|spoke) (?:for|against|of)",
    r"travel(?:s|led|ling)?",
    r"mend(?:s|ed|ing)?",
    r"gives? way",
    r"without us",
    r"what (?:the |a |an )?\S+ (?:says?|said)",
    r"no more than it",
    r"is to be (?:known|had)",
    r"(?<!there )(?:is|was|are) no (?!longer|reason|wider)\w+",
    r"who (?:wants|may|handles)",
    r"(?:is|are) asked whether",
    r"all that (?:is|was|there)",
    r"all well",
    r"amid",
    r"whereof|wherein|thereof|hence",
    r"for lack of",
    r"in the light of",
    r"are those of",
    r"goes by",
    r"tells? apart",
    r"told apart",
)
"""Phrases, as regular expressions, that read as translated. They do not come back."""

_RETIRED = re.compile(rf"(?<![\w-])(?:{'|'.join(RETIRED)})(?![\w-])", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_\[]*[A-Z0-9`-])")
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|vs|cf|etc|approx|No|Fig)\.\s")
_BLOCK_START = re.compile(r"^(?:#{1,6} |[-*] |\d+\. |> |\|)")

Passages = Iterator[tuple[str, bool]]
"""Texts, and whether each is running prose (else a heading or a cell of a table)."""


def read_markdown(path: Path) -> Passages:
    """Yield paragraphs, list items, headings and cells of a page, without code blocks."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2[^\n]*$", "\n", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        stripped = line.strip()
        if paragraph and (not stripped or _BLOCK_START.match(stripped)):
            yield " ".join(paragraph), True
            paragraph = []
        if stripped.startswith("|"):
            yield from ((cell.strip(), False) for cell in re.split(r"(?<!\\)\|", stripped) if cell.strip(" -:"))
        elif stripped.startswith("#"):
            yield stripped.lstrip("# "), False
        elif stripped:
            paragraph.append(re.sub(r"^(?:[-*]|\d+\.|>) +", "", stripped))


def read_card(path: Path) -> Passages:
    """Yield the texts of a rule's card that people read."""
    card = yaml.safe_load(path.read_text())
    validations = [*card.get("validation", ()), card.get("confirm", {})]
    for text in (card["title"], *(each["expected"] for each in validations if "expected" in each)):
        yield text, False
    for key in ("what", "why", "fix", "safety", "actions", "risks"):
        value = card.get(key, ())
        for text in value.split("\n\n") if isinstance(value, str) else value:
            yield text, True


def read_module(path: Path) -> Passages:
    """Yield the docstrings, comments and longer texts of a module. Only docstrings are running prose."""
    source = path.read_text()
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings:
                yield from ((" ".join(text.split()), True) for text in re.split(r"\n\s*\n", node.value))
            elif node.value.count(" ") >= 3:
                yield node.value, False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# "), False


SOURCES: dict[str, Callable[[Path], Passages]] = {
    "README.md": read_markdown,
    "CONTRIBUTING.md": read_markdown,
    "docs/**/*.md": read_markdown,
    "rules/layout/*.yaml": read_card,
    "rules/cuda/*.yaml": read_card,
    "rules/recommendations/*.yaml": read_card,
}
"""Globs from the root, and how their files are read. A new kind of source is one line here."""

FILES = [(path, read) for pattern, read in SOURCES.items() for path in sorted(ROOT.glob(pattern))]


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a passage: code is one word, links are their text."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "`x`", text)
    text = _ABBREVIATIONS.sub(lambda match: match.group().replace(".", "").replace(" ", " "), text)
    return [sentence for sentence in _SENTENCE_END.split(text) if _count_words(sentence)]


def _count_words(sentence: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def find_faults(passages: Passages, *, mean_of_page: bool = True) -> list[str]:
    """Return every retired phrase, every sentence that is too long and, of a page, a mean that is too high."""
    faults, lengths = [], []
    for text, running in passages:
        for sentence in split_sentences(text):
            words = _count_words(sentence)
            if found := _RETIRED.search(sentence):
                faults.append(f"{found.group()!r}: {sentence}")
            if words > LONGEST:
                faults.append(f"{words} words: {sentence}")
            if running:
                lengths.append(words)
    if mean_of_page and lengths and mean(lengths) >= MEAN:
        faults.append(f"mean of {mean(lengths):.1f} words in {len(lengths)} sentences")
    return faults


@pytest.mark.parametrize(("path", "read"), FILES, ids=lambda value: _name(value))
def test_page_is_plain_english(path: Path, read: Callable[[Path], Passages]) -> None:
    assert find_faults(read(path)) == []


def _name(value: Any) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else ""


PACKAGES = (*sorted(path.name for path in (ROOT / "frx_graph").iterdir() if path.is_dir()), "")
RIDDLES = re.compile(r"(?:What|Which|Whether|How|Of|Where|Who|When)\b")
"""Words that no docstring begins with: it begins with a verb or a noun."""


def list_modules(room: str) -> list[Path]:
    """Return the modules of a folder of the package and below, or those of its root."""
    folder = (ROOT / "frx_graph" / room).resolve()
    return sorted(folder.rglob("*.py") if room else folder.glob("*.py"))


@pytest.mark.parametrize("room", PACKAGES)
def test_code_is_plain_english(room: str) -> None:
    faults = {path.name: find_faults(read_module(path), mean_of_page=False) for path in list_modules(room)}
    assert {name: found for name, found in faults.items() if found} == {}


@pytest.mark.parametrize("room", PACKAGES)
def test_docstrings_begin_with_a_verb_or_a_noun(room: str) -> None:
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    trees = [ast.parse(path.read_text()) for path in list_modules(room)]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, documented)]
    assert [text for node in nodes if RIDDLES.match(text := ast.get_docstring(node) or "")] == []


def test_every_source_has_files() -> None:
    assert [pattern for pattern in SOURCES if not list(ROOT.glob(pattern))] == []


def test_faults_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# What the profiler says\n\nA copy of its own. Fine, e.g. here.\n```sh\nnobody reads `this`\n```\n"
        "| a cell | nobody knows |\n|---|---|\n\n- " + "word " * 41 + "\n"
    )
    faults = find_faults(read_markdown(page))
    assert [fault.split(":")[0] for fault in faults] == [
        "'What the profiler says'",
        "'of its'",
        "'nobody'",
        "41 words",
    ]


def test_mean_of_a_page_is_bounded(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("\n\n".join(["Word " + "word " * 20 + "end."] * 2))
    assert find_faults(read_markdown(page)) == ["mean of 22.0 words in 2 sentences"]
