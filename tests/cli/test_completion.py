"""Completion: what a shell offers, without Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from frx_graph.cli import completion
from frx_graph.cli.command_tree import DescribedCommand, describe_commands, list_choices
from frx_graph.cli.completion import read_completion_script
from frx_graph.cli.completion_script import Shell, write_completion_script
from frx_graph.cli.main import run


@pytest.fixture(scope="module")
def commands() -> list[DescribedCommand]:
    return list(describe_commands())


CASES = [
    ("frx anal", {"analyze"}),
    ("frx-graph prof", {"profile"}),
    ("frx ledger r", {"rollback"}),
    ("frx advise --form", {"--format"}),
    ("frx advise file.py:build --format ht", {"html"}),
    ("frx ledger list --format j", {"json"}),
    ("frx completion z", {"zsh"}),
    ("frx collect -- python --form", set()),
]


def offered(shell: Shell, script: Path, typed: str) -> set[str]:
    """What that shell makes of a line."""
    if shell is Shell.FISH:
        program = f"source {script}; complete -C '{typed}'"
    else:
        words = typed.split()
        program = (
            f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _frx;"
            ' printf "%s\\n" "${COMPREPLY[@]}"'
        )
    ran = subprocess.run(
        [shutil.which(shell.value) or shell.value, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=script.parent,
        # Nothing that could be started: what is offered is in the script.
        env={"PATH": "/nonexistent", "HOME": str(script.parent)},
    )
    return {line.partition("\t")[0] for line in ran.stdout.splitlines() if line}


@pytest.mark.parametrize("shell", Shell)
def test_the_packaged_scripts_are_those_of_the_commands(shell: Shell, commands: list[DescribedCommand]) -> None:
    written = write_completion_script(shell, commands)
    if os.environ.get("FRX_GOLDEN") == "write":
        (Path(completion.__file__).parent / "completions" / f"frx.{shell}").write_text(written)
    assert read_completion_script(shell) == written


@pytest.mark.parametrize(("typed", "expected"), CASES)
@pytest.mark.parametrize("shell", [Shell.BASH, Shell.FISH])
def test_what_is_offered(
    shell: Shell, typed: str, expected: set[str], commands: list[DescribedCommand], tmp_path: Path
) -> None:
    if shutil.which(shell.value) is None:
        pytest.skip(f"no {shell.value} here")
    if shell is Shell.FISH and " -- " in typed:
        pytest.skip("fish goes on completing the options of frx behind --")
    script = tmp_path / "completion"
    script.write_text(write_completion_script(shell, commands))
    assert offered(shell, script, typed) == expected


def test_zsh_takes_its_script(commands: list[DescribedCommand], tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    script = tmp_path / "_frx"
    script.write_text(write_completion_script(Shell.ZSH, commands))
    program = (
        f"compdef() {{ }}; source {script}; compadd() {{ print -r -- $@ }}; _files() {{ }};"
        "words=(frx advise --format ''); CURRENT=4; _frx"
    )
    ran = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "-- text json html md sarif github\n"


@pytest.mark.parametrize(
    ("shell", "files"),
    [
        (
            "bash",
            {".local/share/bash-completion/completions/frx", ".local/share/bash-completion/completions/frx-graph"},
        ),
        ("zsh", {".zfunc/_frx"}),
        ("fish", {".config/fish/completions/frx.fish", ".config/fish/completions/frx-graph.fish"}),
    ],
)
def test_it_is_installed_where_the_shell_looks(
    shell: str, files: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert run(["completion"]) == 0
    printed = capsys.readouterr().out
    assert run(["completion", "--install"]) == 0
    written = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert written == dict.fromkeys(files, printed)
    assert capsys.readouterr().out == ""


def test_a_shell_that_is_not_known(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SHELL", f"{os.sep}bin{os.sep}tcsh")
    assert run(["completion"]) == 2
    assert "bash, zsh, fish" in capsys.readouterr().err


def test_names_are_plain(commands: list[DescribedCommand]) -> None:
    # They stand in scripts of shells as they are.
    names = [word for each in commands for word in (*each.path, *each.below)]
    names += [word for each in commands for option in each.options for word in (*option.opts, *list_choices(option))]
    assert [name for name in names if not name.replace("-", "").replace("_", "").isalnum()] == []
