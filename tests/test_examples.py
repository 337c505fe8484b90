"""The examples keep the layout problems that they are there to show."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import frx_graph

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
