"""`@torch.compile` above a `forward` with memory-bound operators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from frx_graph.advisor import advisor
from frx_graph.advisor.advisor import advise
from frx_graph.advisor.target import load_target
from frx_graph.fix.source_change import build_changes, collect_fixes, read_sources
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.records import Finding, Fixability, FixOffer

MODEL = """\
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(64))

    def forward(self, x):
        return torch.sigmoid(x * self.scale) * torch.tanh(x) + x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.Sequential(Gate(), Gate())

    def forward(self, x):
        return self.gates(x)


def build():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(64, 64),)
"""
FIXED = MODEL.replace(
    "    def forward(self, x):\n        return torch",
    "    @torch.compile\n    def forward(self, x):\n        return torch",
)
pytestmark = pytest.mark.usefixtures("nothing_compiled")


@pytest.fixture(autouse=True)
def profile(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = DeviceProfile("cpu", "a CPU", 10e9, {torch.float32: 1e12}, 64)
    monkeypatch.setattr(advisor, "get_device_profile", lambda *_, **_how: made_up)


def find(tmp_path: Path, text: str, *, inner: str = "eager") -> list[Finding]:
    path = tmp_path / "model.py"
    path.write_text(text)
    workload = load_target(f"{path}:build")
    findings = advise(workload.model, workload.args, measure=False, inner=inner).advice.findings
    return [one for one in findings if one.rule == "FRX005"]


def get_offer(findings: list[Finding]) -> FixOffer:
    (found,) = findings
    assert found.offer is not None
    return found.offer


def test_class_of_the_operators_is_compiled_once_for_all_modules(tmp_path: Path) -> None:
    findings = find(tmp_path, MODEL)
    assert get_offer(findings).fixability is Fixability.UNSAFE
    fixes = collect_fixes(findings)
    (change,) = build_changes(fixes, read_sources(fixes))
    assert change.after.decode() == FIXED
    # What the program compiles by itself is not found again.
    assert find(tmp_path, FIXED) == []


def test_module_that_compiles_itself_is_not_found(tmp_path: Path) -> None:
    compiled = MODEL.replace(
        "        self.gates = nn.Sequential(Gate(), Gate())\n",
        "        self.gates = nn.Sequential(Gate(), Gate())\n        self.gates.compile()\n",
    )
    assert find(tmp_path, compiled) == []


def test_group_that_spans_two_modules_is_compiled_in_the_outer_one(tmp_path: Path) -> None:
    outer = "    def forward(self, x):\n        return self.gates(x.exp() + x) * 2.0"
    text = MODEL.replace("    def forward(self, x):\n        return self.gates(x)", outer)
    findings = find(tmp_path, text)
    fixes = collect_fixes(findings)
    (change,) = build_changes(fixes, read_sources(fixes))
    compiled = text.replace(outer, f"    @torch.compile\n{outer}")
    assert change.after.decode() == compiled
    assert find(tmp_path, compiled) == []


def test_forward_that_calls_a_method_is_compiled(tmp_path: Path) -> None:
    helper = "    def forward(self, x):\n        return self.mix(x)\n\n    def mix(self, x):\n        return torch"
    text = MODEL.replace("    def forward(self, x):\n        return torch", helper)
    fixes = collect_fixes(find(tmp_path, text))
    (change,) = build_changes(fixes, read_sources(fixes))
    assert change.after.decode() == text.replace(helper, f"    @torch.compile\n{helper}")


def test_scripted_modules_are_passed_over(tmp_path: Path) -> None:
    text = MODEL.replace("nn.Sequential(Gate(), Gate())", "nn.Sequential(Gate(), torch.jit.script(nn.ReLU()))")
    assert find(tmp_path, text)


def test_modules_without_lines_of_their_own_are_compiled_where_they_are_called(tmp_path: Path) -> None:
    gates = "nn.Sequential(nn.Sigmoid(), nn.Tanh(), nn.Softplus())"
    text = MODEL.replace("nn.Sequential(Gate(), Gate())", gates)
    outer = "    def forward(self, x):\n        return self.gates(x)"
    fixes = collect_fixes(find(tmp_path, text))
    (change,) = build_changes(fixes, read_sources(fixes))
    assert change.after.decode() == text.replace(outer, f"    @torch.compile\n{outer}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            MODEL.replace(
                "    def forward(self, x):\n        return torch",
                "    @torch.autocast('cpu')\n    def forward(self, x):\n        return torch",
            ),
            "its `forward` is decorated already",
        ),
        (
            MODEL.replace(
                "    def forward(self, x):\n        return torch",
                "    def forward(gate, x):\n        self = gate\n        return torch",
            ),
            "its `forward` is not that of a module",
        ),
        (
            MODEL.replace("        return torch", "        torch._dynamo.graph_break()\n        return torch"),
            "Dynamo breaks the graph on line 11",
        ),
    ],
)
def test_other_functions_are_left_alone(text: str, reason: str, tmp_path: Path) -> None:
    offers = {(one.offer.fixability, one.offer.reason) for one in find(tmp_path, text) if one.offer}
    assert offers == {(Fixability.NOT_FIXABLE, reason)}
