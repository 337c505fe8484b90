"""A hook converts a gradient where the backward loses channels-last."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from frx_graph.advisor.advisor import advise
from frx_graph.advisor.target import load_target
from frx_graph.fix.source_change import build_changes, collect_fixes, read_sources
from frx_graph.records import Finding, Fixability

MODEL = """\
from torch import nn, randn, channels_last


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Conv2d(4, 8, 3, padding=1)
        self.right = nn.Conv2d(4, 8, 3, padding=1)
        self.head = nn.Linear(8 * 64, 3)
        self.to(memory_format=channels_last)

    def forward(self, x):
        y = self.left(x) + self.right(x)
        return self.head(y.flatten(1))  # the classes


def build():
    return Two(), (randn(2, 4, 8, 8).to(memory_format=channels_last),)
"""
HOOK = """\
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))
"""
FIXED = f"import torch\n{MODEL}".replace("        return self.head", f"{HOOK}        return self.head")
RETURN = "return self.head(y.flatten(1))"
pytestmark = pytest.mark.usefixtures("nothing_compiled")


def find(path: Path) -> list[Finding]:
    workload = load_target(f"{path}:build")
    findings = advise(workload.model, workload.args, train=True, measure=False).advice.findings
    return [one for one in findings if one.rule == "FRX008"]


def write(folder: Path, text: str) -> Path:
    path = folder / "model.py"
    path.write_text(text)
    return path


def run_step(path: Path) -> tuple[Tensor, list[Tensor | None]]:
    torch.manual_seed(0)
    workload = load_target(f"{path}:build")
    assert isinstance(workload.model, nn.Module)
    result: Tensor = workload.model(*workload.args)
    result.square().sum().backward()
    return result, [parameter.grad for parameter in workload.model.parameters()]


def test_hook_is_put_in_front_of_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL)
    expected = run_step(path)
    findings = find(path)
    assert [one.offer.fixability for one in findings if one.offer] == [Fixability.UNSAFE]
    fixes = collect_fixes(findings)
    (change,) = build_changes(fixes, read_sources(fixes))
    assert change.after.decode() == FIXED
    write(tmp_path, FIXED)
    assert not find(path)
    torch.testing.assert_close(run_step(path), expected)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "return self.head((self.left(x) + self.right(x)).flatten(1))",
            "the line does not read one tensor that has a local name",
        ),
        (
            "y = self.left(x) + self.right(x); return self.head(y.flatten(1))",
            "the line of `y` has several statements, or assigns it",
        ),
        ("y += 1.0\n        return self.head(y.flatten(1))", "line 14 writes in place, perhaps into the same memory"),
        (
            "for _ in range(1):\n            z = self.head(y.flatten(1))\n        return z",
            "it stands in a loop, or in a function within",
        ),
    ],
)
def test_other_lines_are_left_alone(line: str, reason: str, tmp_path: Path) -> None:
    findings = find(write(tmp_path, MODEL.replace(RETURN, line)))
    assert {(one.offer.fixability, one.offer.reason) for one in findings if one.offer} == {
        (Fixability.NOT_FIXABLE, reason)
    }
