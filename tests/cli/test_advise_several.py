"""`frx advise` for several targets and for folders."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from frx_graph.advisor.target_search import find_targets
from frx_graph.cli.main import run
from frx_graph.config import read_advise_config
from frx_graph.errors import OptionError, TargetError

MODELS = """
import torch
from torch import nn

class Churn(nn.Module):
    def forward(self, x):
        y = x.transpose(1, 2).contiguous()
        return y.transpose(1, 2).contiguous() + 1

def build():
    return Churn(), (torch.randn(4, 64, 64),)

def build_clean(width=4):
    return nn.ReLU(), (torch.randn(2, width),)

def build_sized(width):
    return nn.Linear(width, width), (torch.randn(2, width),)

def broken():
    raise ValueError("planted")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "churn.py").write_text(MODELS)
    (tmp_path / "models" / "broken.py").write_text("def build(:\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_targets_of_a_folder(folder: Path) -> None:
    found = ["models/churn.py:build", "models/churn.py:build_clean"]
    assert find_targets(["models"]) == found
    assert find_targets(["models/churn.py:build_clean", "models", "x:y"]) == [found[1], found[0], "x:y"]
    (folder / "empty").mkdir()
    with pytest.raises(TargetError, match="no function `build`"):
        find_targets(["empty"])
    with pytest.raises(OptionError, match="no target"):
        find_targets([])


def test_folders_above_are_searched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "models")
    assert find_targets(["../models"]) == ["../models/churn.py:build", "../models/churn.py:build_clean"]
    (folder / "pyproject.toml").write_text('[tool.frx]\ntargets = ["models/churn.py:build", "models", "a.b:c"]\n')
    assert read_advise_config(Path.cwd()).targets == ("churn.py:build", ".", "a.b:c")


def test_all_are_reported_and_totalled(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "models", "--no-measure"]) == 1
    said = capsys.readouterr()
    assert "1 of 2: models/churn.py:build" in said.err
    last = said.out.rpartition("ALL TARGETS")[2]
    assert "models/churn.py:build " in last
    assert "models/churn.py:build_clean" in last
    assert max(map(len, said.out.splitlines())) <= 80


def test_targets_of_the_project(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = '[tool.frx]\ntargets = ["models/churn.py:build_clean"]\n'
    (folder / "pyproject.toml").write_text(targets)
    assert run(["advise", "--no-measure"]) == 0
    assert "No findings" in capsys.readouterr().out
    (folder / "pyproject.toml").unlink()
    assert run(["advise"]) == 2
    assert "no target" in capsys.readouterr().err


def test_json_and_sarif_hold_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "models", "--no-measure", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    published = resources.files("frx_graph.reports").joinpath("frx_advice_set_v1.schema.json").read_text("utf-8")
    jsonschema.Draft202012Validator(json.loads(published)).validate(document)
    assert [bool(one["findings"]) for one in document["advice"]] == [True, False]
    assert run(["advise", "models", "--no-measure", "--format", "sarif", "-q"]) == 1
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
    assert run(["advise", "models", "--format", "html"]) == 2
    assert "one target" in capsys.readouterr().err


def test_a_baseline_of_several(folder: Path) -> None:
    assert run(["advise", "models", "--no-measure", "--write-baseline", "known.json", "-q"]) == 1
    assert run(["advise", "models", "--no-measure", "--baseline", "known.json", "-q"]) == 0


def test_a_target_that_fails_does_not_stop_the_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["models/churn.py:broken", "models/churn.py:build"]
    assert run(["advise", *typed, "--no-measure"]) == 2
    said = capsys.readouterr()
    assert "planted" in said.err
    assert run(["advise", *typed, "--no-measure", "-q"]) == 2
    assert "planted" in capsys.readouterr().err
    assert "models/churn.py:build " in said.out
