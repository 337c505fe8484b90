"""Each fixer on small programs, before and after, and on near misses that it must leave alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frx_graph.advisor.advisor import advise
from frx_graph.advisor.target import Workload, load_target
from frx_graph.fix.fixers import FIXERS
from frx_graph.fix.source_change import build_changes, collect_fixes, drop_overlapping, read_sources
from frx_graph.records import Finding, Fixability

PROGRAMS = Path(__file__).parent.parent / "data" / "fixes"
RULES = {fixer.name: fixer.rule for fixer in FIXERS}
CHANGED = sorted(str(path.relative_to(PROGRAMS)) for path in PROGRAMS.rglob("*.before.py"))
TESTED_ELSEWHERE = {
    "attention_setting",
    "autocast",
    "channels_last",
    "compile_region",
    "gradient_layout",
    "plain_layout",
    "stored_weights",
}
"""Fixers that need measured times, a package or a backward: test_model_class_fixes.py and one file for each other."""
NEAR_MISSES = sorted(str(path.relative_to(PROGRAMS)) for path in PROGRAMS.rglob("*.near_miss.py"))
pytestmark = pytest.mark.usefixtures("nothing_compiled")


def find(path: Path, *, train: bool = False) -> tuple[Finding, ...]:
    """Return the findings of the rule that the folder's fixer serves."""
    workload = load_target(f"{path}:build")
    advice = advise(workload.model, workload.args, train=train, measure=False).advice
    return tuple(one for one in advice.findings if one.rule == RULES[path.parent.name])


def change(findings: tuple[Finding, ...]) -> dict[str, bytes]:
    """Return the files as all fixes together leave them."""
    fixes = drop_overlapping(collect_fixes(findings))
    return {str(one.path): one.after for one in build_changes(fixes, read_sources(fixes))}


def run(workload: Workload) -> tuple[Any, list[Tensor | None]]:
    """Return what the program computes, and its gradients."""
    torch.manual_seed(0)
    outputs = workload.model(*workload.args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert isinstance(workload.model, nn.Module)
    parameters = list(workload.model.parameters())
    if any(one.requires_grad for one in outputs):
        sum(one.square().sum() for one in outputs).backward()
    return outputs, [parameter.grad for parameter in parameters]


@pytest.mark.parametrize("name", CHANGED)
def test_the_finding_is_fixed_and_the_program_computes_the_same(name: str) -> None:
    before = PROGRAMS / name
    after = before.with_name(before.name.replace(".before.", ".after."))
    found, left = find(before), find(after)
    assert change(found) == {str(before): after.read_bytes()}
    assert len(left) < len(found)
    # A second run changes nothing.
    assert not collect_fixes(left)
    (expected, gradients), (result, own) = (run(load_target(f"{path}:build")) for path in (before, after))
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(own, gradients, rtol=1e-4, atol=1e-3)
    assert [one.stride() for one in result] == [one.stride() for one in expected]


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_are_left_alone_with_a_reason(name: str) -> None:
    path = PROGRAMS / name
    expected = path.read_text().partition("\n")[0].removeprefix("# ")
    offers = [finding.offer for finding in find(path)]
    assert offers
    assert {offer.fixability for offer in offers if offer} == {Fixability.NOT_FIXABLE}
    assert expected in {offer.reason for offer in offers if offer}


@pytest.mark.parametrize("fixer", sorted(RULES.keys() - TESTED_ELSEWHERE))
def test_every_fixer_has_programs_that_it_changes_and_near_misses(fixer: str) -> None:
    assert sum(name.startswith(f"{fixer}/") for name in CHANGED) >= 3
    assert sum(name.startswith(f"{fixer}/") for name in NEAR_MISSES) >= 2
