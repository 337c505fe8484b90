"""What the README tells people to type exists, and its programs run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from frx_graph.cli.main import run
from frx_graph.rules.rule_card import load_all_cards

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands(program: str) -> list[list[str]]:
    """The arguments of every line in a shell block that runs `program`, comments left out."""
    words = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
    return [arguments[1:] for arguments in words if arguments and arguments[0] == program]


@pytest.mark.parametrize("arguments", commands("frx"), ids=" ".join)
def test_frx_command_and_its_options_exist(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([arguments[0], "--help"]) == 0
    text = capsys.readouterr().out
    assert [word for word in arguments if word.startswith("--") and word not in text.split()] == []


@pytest.mark.parametrize("arguments", commands("make"), ids=" ".join)
def test_make_target_exists(arguments: list[str]) -> None:
    subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, check=True, capture_output=True)


def test_table_of_rules_is_that_of_the_cards() -> None:
    listed = re.findall(r"^\| (FRX\d{3}) \| `(\w+)` \|", README, re.MULTILINE)
    assert listed == [(card.code, card.name) for card in load_all_cards()]


def test_files_that_are_mentioned_exist() -> None:
    mentioned = re.findall(r"\b((?:benchmarks|examples|tests|passes|rules|frx_graph)/[\w./]+\.\w+)", README)
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert mentioned
    assert links
    assert [name for name in [*mentioned, *links] if not (ROOT / name).exists()] == []


@pytest.mark.integration
@pytest.mark.parametrize(
    ("program", "says"),
    list(zip(blocks("python"), [r"FRX\d{3}", r"FRX\d{3}", "no trial has proved"], strict=True)),
    ids=["backend", "advise", "compile"],
)
def test_program_runs_and_reports_its_findings(program: str, says: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(program)
    ran = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert re.search(says, ran.stdout + ran.stderr), ran.stdout + ran.stderr
