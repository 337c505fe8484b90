"""`frx ncu-command` as it is typed."""

from __future__ import annotations

import json
import shlex

import pytest

from frx_graph.cli.main import run
from frx_graph.evidence.ncu.presets import PRESETS


def test_the_command_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--kernel-name", "my kernel", "--launch-count", "5", "--output", "memory.csv"]
    assert run(["ncu-command", "memory", *given, "--", "python", "train.py", "--lr", "1"]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words[:2] == ["ncu", "--csv"]
    assert words[words.index("--kernel-name") + 1] == "my kernel"
    assert words[words.index("--metrics") + 1].split(",") == list(PRESETS["memory"].counters)
    assert words[-6:] == ["--log-file", "memory.csv", "python", "train.py", "--lr", "1"]


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ncu-command", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(PRESETS)
    assert run(["ncu-command", "--list", "--json"]) == 0
    assert [one["preset"] for one in json.loads(capsys.readouterr().out)] == list(PRESETS)
    assert run(["ncu-command", "stalls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"][-1] == "./your_app"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((), "which preset?"), (("memry",), "did you mean memory?"), (("memory", "--launch-count", "0"), "launch-count")],
)
def test_errors_give_a_hint(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    assert run(["ncu-command", *arguments]) == 2
    assert said in capsys.readouterr().err
