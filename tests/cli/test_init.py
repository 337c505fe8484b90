"""`frx init`, with real files and, where somebody is asked, a real terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from frx_graph.cli.main import run

TRAINS = """import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, batch in enumerate([torch.ones(3, 2)] * 2):
    model(batch).mean().backward()
    optimizer.step()
"""
WITH = "    with frx_graph.step_context(step=step, batch=batch, model=model):  # frx init --patch\n"


PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_init_v1.schema.json").read_text("utf-8")


def _checked(out: str) -> dict[str, Any]:
    document = json.loads(out)
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(document)
    assert isinstance(document, dict)
    return document


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(TRAINS)
    return path


def test_first_steps_name_the_script_and_the_next_command(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init"]) == 0
    out, _ = capsys.readouterr()
    assert "train.py  line 4: for ... in enumerate([torch.ones(3, 2)] * 2)" in out
    assert "\n  frx init --patch train.py\n" in out
    assert "torch" in out
    assert max(map(len, out.splitlines())) <= 80
    assert script.read_text() == TRAINS


def test_first_steps_as_json(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--json"]) == 0
    document = _checked(capsys.readouterr().out)["first_steps"]
    assert [check["name"] for check in document["checks"]][:3] == ["python", "torch", "CUDA available"]
    assert document["scripts"] == [
        {"path": "train.py", "line": 4, "over": "enumerate([torch.ones(3, 2)] * 2)", "instrumented": False, "note": ""}
    ]
    assert [each["command"] for each in document["next"]][:2] == [
        "frx init --patch train.py",
        "frx collect --explain -- python train.py",
    ]


def test_where_no_script_trains_a_model_is_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init"]) == 0
    assert "No training script was found here." in (out := capsys.readouterr().out)
    assert "frx collect" not in out


def test_nothing_is_written_if_no_one_can_confirm(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--patch", "train.py"]) == 2
    out, err = capsys.readouterr()
    assert f"+{WITH}" in out
    assert "--yes writes it without asking" in err
    assert script.read_text() == TRAINS


def test_with_yes_it_is_written_and_taken_out_again(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.chmod(0o755)
    assert run(["init", "--patch", "train.py", "--yes"]) == 0
    assert WITH in script.read_text()
    assert script.stat().st_mode & 0o777 == 0o755
    assert "frx collect --explain -- python train.py" in capsys.readouterr().err
    assert run(["init", "--patch", "train.py", "--yes"]) == 0
    assert "imports frx_graph already" in capsys.readouterr().err
    assert run(["init", "--unpatch", "train.py", "-y", "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert script.read_text() == TRAINS
    assert run(["init", "--unpatch", "train.py", "--yes"]) == 0
    assert "left unchanged" in capsys.readouterr().err


def test_the_diff_as_json(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--patch", "train.py", "--yes", "--json"]) == 0
    document = _checked(capsys.readouterr().out)["patch"]
    assert document["written"] is True
    assert f"+{WITH}" in document["diff"]
    patched = subprocess.run(
        ["patch", "--reverse", "--output=-", "train.py"],
        input=document["diff"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert patched.stdout == TRAINS
    assert run(["init", "--patch", "train.py", "--yes", "--json"]) == 0
    assert _checked(capsys.readouterr().out)["patch"] == {
        "file": "train.py",
        "written": False,
        "reason": "imports frx_graph already",
        "diff": "",
    }


@pytest.mark.parametrize(("answer", "written"), [("y", True), ("n", False), ("", False)])
def test_on_a_terminal_it_is_asked_for(script: Path, answer: str, written: bool) -> None:
    leader, follower = pty.openpty()
    said = b""
    with subprocess.Popen(
        [sys.executable, "-m", "frx_graph", "init", "--patch", "train.py"],
        stdin=follower,
        stdout=follower,
        stderr=subprocess.PIPE,
        cwd=script.parent,
    ) as asked:
        os.close(follower)
        assert asked.stderr is not None
        question = os.read(asked.stderr.fileno(), 1000)
        assert question.startswith(b"Write train.py?")
        os.write(leader, f"{answer}\n".encode())
        said = asked.stderr.read()
        assert asked.wait() == 0
    os.close(leader)
    assert (WITH in script.read_text()) is written
    assert (b"frx: undo: " in said, b"frx: next: " in said) == (written, written)
    assert (b"was left unchanged" in said) is not written


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--patch", "a.py", "--unpatch", "a.py"], "both given"),
        (["--yes"], "--yes answers --patch"),
        (["--patch", "missing.py"], "cannot be read"),
        (["--patch", "link.py", "--yes"], "is a link"),
        (["--patch", "empty.py", "--yes"], "no loop in it trains"),
    ],
)
def test_init_errors_take_one_line(
    arguments: list[str], said: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (script.parent / "link.py").symlink_to(script)
    (script.parent / "empty.py").touch()
    assert run(["init", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_script_contents_cannot_inject_escape_sequences(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(TRAINS.replace("torch.ones(3, 2)", "'\x1b]0;title\x07\x1b[31m'"))
    assert run(["init"]) == 0
    assert run(["init", "--patch", "train.py"]) == 2
    out, err = capsys.readouterr()
    assert not {"\x1b", "\x07"} & set(out + err)


def test_script_names_cannot_inject_escape_sequences(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b[31mred\x07.py"
    script.rename(script.with_name(name))
    for arguments in (["--patch", name, "--yes"], ["--patch", name, "--yes"], ["--unpatch", name, "--yes"]):
        assert run(["init", *arguments]) == 0
    out, err = capsys.readouterr()
    assert not {"\x1b", "\x07"} & set(out + err)
