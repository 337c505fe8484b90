"""The examples keep the layout problems that they are there to show."""

from __future__ import annotations

import importlib.util
import json
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import frx_graph
from frx_graph.cli.main import run

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "rules"),
    [("convnet", {"FRX001", "FRX002", "FRX007"}), ("attention", {"FRX002", "FRX003"})],
)
def test_example_has_the_findings_it_is_for_at_its_own_lines(name: str, rules: set[str]) -> None:
    model, args = example(name).build()
    advice = frx_graph.advise(model, args, measure=False).advice
    own = {finding.rule for finding in advice.findings if Path(finding.site.file) == EXAMPLES / f"{name}.py"}
    assert rules <= own


@pytest.mark.integration
def test_the_workflow_fails_on_findings_that_the_baseline_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = yaml.safe_load((EXAMPLES / "github_workflow.yml").read_text())
    commands = [step["run"] for step in workflow["jobs"]["frx"]["steps"] if step.get("run", "").startswith("frx ")]
    (advise,) = (shlex.split(command)[1:] for command in commands)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    first = (EXAMPLES / "github_workflow.yml").read_text().partition("#     frx ")[2].partition("\n")[0]
    assert run(shlex.split(first)) == 0
    assert run(advise) == 0
    assert json.loads((tmp_path / "frx.sarif").read_text())["runs"][0]["results"] == []
    baseline = json.loads((tmp_path / "frx-baseline.json").read_text())
    assert baseline["findings"]
    (tmp_path / "frx-baseline.json").write_text(json.dumps({**baseline, "findings": []}))
    assert run(advise) == 1
    assert json.loads((tmp_path / "frx.sarif").read_text())["runs"][0]["results"]
