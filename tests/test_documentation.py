"""The documentation is whole: it builds without a warning, loads nothing from elsewhere, and goes by what there is."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.core import TyperOption

from frx_graph.analyzers.kernels.recommendations import LABEL_TITLES
from frx_graph.cli.commands import COMMANDS, load_command
from frx_graph.rules.cuda_card import load_cuda_cards
from frx_graph.rules.recommendation_card import load_recommendations
from frx_graph.rules.rule_card import load_all_cards

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FLAGS = re.findall(
    r"^\| `([\w-]+)` \| (?:`(--[\w-]+)`)? ?\| (accepted|accepted as `--[\w-]+`|refused) \| ?(.*?) ?\|$",
    (DOCS / "reference_flags.md").read_text(),
    re.MULTILINE,
)
PUBLISHED = {
    "init": 1,
    "collect": 9,
    "analyze": 16,
    "doctor": 0,
    "smoke-test": 0,
    "ncu-command": 6,
    "profile": 10,
    "tune": 22,
    "compare": 7,
    "explain": 2,
    "bench": 4,
}
"""Commands of the published reference, and how many flags each has there."""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("generated_pages", DOCS / "generated_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(generator: ModuleType) -> dict[str, str]:
    made: dict[str, str] = generator.generated_pages(DOCS)
    return made


def test_there_is_a_page_for_every_command_and_card(pages: dict[str, str]) -> None:
    expected = {f"commands/{name}.md" for name in COMMANDS}
    expected |= {f"rules/layout/{card.code}.md" for card in load_all_cards()}
    expected |= {f"rules/cuda/{name}.md" for name in load_cuda_cards()}
    expected |= {f"rules/advice/{card.id}.md" for card in load_recommendations()}
    indices = {f"rules/{folder}/index.md" for folder in ("layout", "cuda", "advice")}
    assert set(pages) == expected | indices | {"labels.md"}
    assert "## frx ledger rollback" in pages["commands/ledger.md"]
    assert "`--no-train`" in pages["commands/advise.md"]


def test_every_label_is_defined(pages: dict[str, str]) -> None:
    glossary = pages["labels.md"]
    sections = dict(re.findall(r"^## `(\w+)` .*?\n(.*?)(?=^## |\Z)", glossary, re.MULTILINE | re.DOTALL))
    assert sections.keys() >= LABEL_TITLES.keys()
    assert [label for label in LABEL_TITLES if "([more](" not in sections[label]] == []
    assert "In a trace: " in sections["input_bound"]
    assert "In a run: waiting for input takes 20 %" in sections["input_bound"]
    assert "In a run" not in sections["layout_churn"]  # said of traces, and referred to


def test_a_cards_text_means_itself(generator: ModuleType) -> None:
    assert generator.prose("a `x_*_y` __sync__ *b* <c> | d") == "a `x_*_y` \\_\\_sync\\_\\_ \\*b\\* \\<c\\> \\| d"


@pytest.mark.integration
def test_it_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("material")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    html = {path: path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    assert len(html) > len(COMMANDS) + len(load_all_cards()) + len(load_cuda_cards()) + len(load_recommendations())
    loaded = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    assert [match.group() for text in html.values() for match in loaded.finditer(text)] == []
    # Diagrams would be drawn by a script from elsewhere.
    assert [str(path) for path, text in html.items() if 'class="mermaid"' in text] == []


def test_pictures_are_small_and_name_no_other_server() -> None:
    pictures = sorted((DOCS / "pictures").iterdir())
    assert [path.name for path in pictures] == ["advise.svg", "report.png"]
    assert all(path.stat().st_size < 300_000 for path in pictures)
    assert re.findall(r"(?:url\(|href=)", pictures[0].read_text()) == ["url("] * pictures[0].read_text().count("url(#")


def test_flags_of_the_published_reference_are_all_listed() -> None:
    listed = {command: [flag for name, flag, *_ in FLAGS if name == command and flag] for command, *_ in FLAGS}
    assert {command: len(flags) for command, flags in listed.items()} == PUBLISHED
    assert all(len(set(flags)) == len(flags) for flags in listed.values())
    assert PUBLISHED.keys() - COMMANDS.keys() == set()


@pytest.mark.parametrize(("command", "flag", "here", "why"), FLAGS)
def test_flag_is_accepted_as_the_table_states(command: str, flag: str, here: str, why: str) -> None:
    options = [option for option in load_command(command).params if isinstance(option, TyperOption)]
    taken = {name: option.name for option in options for name in (*option.opts, *option.secondary_opts)}
    if here == "refused":
        assert flag not in taken
        assert why
        return
    assert flag == "" or flag in taken
    if here.startswith("accepted as "):
        assert here.removeprefix("accepted as ").strip("`") in taken


def test_what_the_page_on_security_names_is_there() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py|(?:[a-z_]+/)+)`", (ROOT / "docs" / "security.md").read_text()))
    assert len(named) > 10
    assert [name for name in sorted(named) if not ((ROOT / "tests" / name).exists() or (ROOT / name).exists())] == []
