"""What holds for all commands alike."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from frx_graph.cli.command_tree import describe_commands
from frx_graph.cli.commands import COMMANDS
from frx_graph.cli.main import run

ROOT = Path(__file__).parent.parent.parent
TREE = {" ".join(each.path): each for each in describe_commands()}
LEAVES = {name: command for name, command in TREE.items() if not command.below}
NO_JSON = {"serve", "completion", "explain", "ledger export", "ledger rollback", "ledger upgrade", "ledger verify"}
"""A service; a script for a shell; files, of which one is JSON; JSON Lines; and two that say one line."""
NOT_QUIET = {"rules", "ledger list", "ledger show", "ncu-command"}
"""What they print is all that they are for."""


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["ncu-command", "--list"], ["init", "--help"]])
def test_commands_that_need_no_torch_do_not_import_it(arguments: list[str]) -> None:
    program = (
        f"import sys; from frx_graph.cli.main import run; code = run({arguments!r});"
        "heavy = {'torch', 'numpy', 'sqlalchemy', 'scipy'} & sys.modules.keys(); sys.exit(code or sorted(heavy) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout


def test_a_trial_starts_what_imports_torch_for_its_arms_before_it_imports_torch() -> None:
    program = "import sys; import frx_graph.cli.trial, frx_graph.trial_worker.launch; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)


def test_a_reader_imports_only_what_its_file_needs() -> None:
    source = Path(__file__).parent.parent / "data" / "cuda" / "uncoalesced_access_bad.cu"
    program = (
        f"import sys; from frx_graph.cli.main import run; run(['analyze', {str(source)!r}]);"
        "others = {'torch', 'numpy', 'jinja2', 'frx_graph.analyze.trace', 'frx_graph.analyze.nsight_compute'};"
        "sys.exit(sorted(others & sys.modules.keys()) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "SOURCE VERDICT" in ran.stdout


def test_patching_needs_no_torch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("for x in loader:\n    model(x).backward()\n")
    program = (
        f"import sys; from frx_graph.cli.main import run; code = run(['init', '--patch', {str(script)!r}, '--yes']);"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert "step_context" in script.read_text()


@pytest.mark.parametrize("name", ["", *TREE])
def test_help_is_readable_at_80_columns_without_colour(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if len(line) > 80] == []
    assert "\x1b" not in out
    assert "..." not in out.split("Commands:")[-1] or name != ""


@pytest.mark.parametrize("name", LEAVES)
def test_whatever_can_be_typed_is_explained(name: str) -> None:
    assert [each.name for each in LEAVES[name].arguments if not each.help] == []
    assert [each.opts for each in LEAVES[name].options if not each.help] == []


@pytest.mark.parametrize("name", LEAVES)
def test_json_and_quiet_are_taken_where_they_mean_something(name: str) -> None:
    taken = {each for option in LEAVES[name].options for each in option.opts}
    assert ("--json" in taken) is (name not in NO_JSON)
    assert ("--quiet" in taken) is (name not in NOT_QUIET)
    assert ("-q" in taken) is ("--quiet" in taken)


def test_quiet_leaves_the_exit_code_and_the_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    kernel = "tests/data/cuda/warp_divergence_bad.cu"
    assert run(["analyze", kernel]) == 1
    text = capsys.readouterr().out
    assert run(["analyze", kernel, "--quiet"]) == 1
    assert capsys.readouterr() == ("", "")
    assert run(["analyze", kernel, "--json", "-q"]) == 1
    document = capsys.readouterr().out
    assert document.startswith("{")
    assert run(["analyze", kernel]) == 1
    assert capsys.readouterr().out == text


def test_json_is_short_for_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "FRX001", "--json"]) == 0
    short = capsys.readouterr().out
    assert run(["rules", "FRX001", "--format", "json"]) == 0
    assert capsys.readouterr().out == short
    assert run(["advise", "x.py:y", "--json", "--format", "html"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_both_names_are_installed() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == dict.fromkeys(("frx", "frx-graph"), "frx_graph.cli.main:main")


def test_an_unknown_command_is_one_line_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyse"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "analyze" in err


def test_summaries_fit_a_line() -> None:
    longest = max(map(len, COMMANDS))
    assert {name for name, home in COMMANDS.items() if len(home.summary) > 80 - longest - 4} == set()
