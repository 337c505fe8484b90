"""Attention of transformers: the user's own file chooses it, and the package stays as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from frx_graph.advisor.advisor import advise
from frx_graph.advisor.target import load_target
from frx_graph.fix.source_change import build_changes, collect_fixes, read_sources
from frx_graph.records import Fixability, FixOffer

PACKAGE = """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, attn_implementation="sdpa"):
        super().__init__()
        self.project = nn.Linear(32, 96)
        self.fused = attn_implementation == "sdpa"

    def forward(self, x):
        q, k, v = self.project(x).reshape(2, 64, 3, 4, 8).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1) @ v
        return y.transpose(1, 2).flatten(2)
"""
BUILDER = """\
import torch
from transformers.modeling import Attention


def build():
    return Attention(attn_implementation='eager').eval(), (torch.randn(2, 64, 32),)
"""
pytestmark = pytest.mark.usefixtures("nothing_compiled")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with that name, where packages are installed."""
    folder = tmp_path / "site-packages" / "transformers"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "modeling.py").write_text(PACKAGE)
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(folder.parent))
    return tmp_path


def find_offer(path: Path, *, named: bool = True) -> FixOffer:
    workload = load_target(f"{path}:build")
    builder = workload.builder if named else None
    findings = advise(workload.model, workload.args, measure=False, builder=builder).advice.findings
    for name in ("transformers", "transformers.modeling"):
        sys.modules.pop(name, None)
    (found,) = (one for one in findings if one.rule == "FRX012")
    assert found.offer is not None
    return found.offer


def test_the_users_file_asks_for_fused_attention(package: Path) -> None:
    path = package / "model.py"
    path.write_text(BUILDER)
    workload = load_target(f"{path}:build")
    findings = advise(workload.model, workload.args, measure=False, builder=workload.builder).advice.findings
    fixes = [one for one in collect_fixes(findings) if one.findings[0].rule == "FRX012"]
    (change,) = build_changes(fixes, read_sources(fixes))
    assert (change.path, change.after.decode()) == (path, BUILDER.replace("'eager'", "'sdpa'"))
    assert not fixes[0].unsafe


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BUILDER.replace("'eager'", "choice").replace("def build", "choice = 'eager'\n\n\ndef build"), "once"),
        (BUILDER.replace("eval()", "eval() or Attention(attn_implementation='eager')"), "once"),
    ],
)
def test_other_files_are_left_alone(text: str, reason: str, package: Path) -> None:
    path = package / "model.py"
    path.write_text(text)
    offer = find_offer(path)
    assert offer.fixability is Fixability.NOT_FIXABLE
    assert (
        offer.reason == f'transformers chooses it, and the function that builds the model does not say "eager" {reason}'
    )


def test_without_the_users_file_the_reason_says_what_to_do(package: Path) -> None:
    path = package / "model.py"
    path.write_text(BUILDER)
    offer = find_offer(path, named=False)
    assert offer.reason == 'transformers chooses it: build the model with attn_implementation="sdpa"'
