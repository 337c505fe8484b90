"""The examples keep the layout problems that they are there to show."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from unproved_promotions import everything_made, promotion

import frx_graph
from frx_graph import backend
from frx_graph.cli.main import run
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.location import parse_location
from frx_graph.support.allocator import POOLING_VARIABLES, Allocation

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
    commands = [
        step["run"] for step in workflow["jobs"]["frx"]["steps"] if step.get("run", "").startswith("frx advise")
    ]
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


APPLIED = {
    "process_id": 1,
    "signature": "a" * 16,
    "environment": "e" * 16,
    "plan": "b" * 16,
    "candidates": [{"rewrite": "propagate_layout", "nodes": ["one", "two"], "choices": []}],
}
STATS = {"ratio_median": 1.31, "ci_low": 1.27, "ci_high": 1.35}
TRIED: dict[str, Any] = {**APPLIED, "trial": {"verdict": "promote", "stats": STATS}}


class Replication:
    """What `apply.py` measures and finds in the ledger, without processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.apply = example("apply")
        self.seconds = {"inductor": 0.0260, "frx": 0.0200}
        self.events: dict[str, list[dict[str, Any]]] = {"applied": [APPLIED], "tried": [TRIED]}
        self.started: list[str] = []
        self.turns: list[str] = []
        self.running = 0
        self.variables: Mapping[str, str] = {}
        monkeypatch.setattr(self.apply, "Program", functools.partial(ReplicatedProgram, self))
        monkeypatch.setattr(self.apply, "list_events", lambda *filters: self.events[filters[1]])


class ReplicatedProgram:
    """A process of `apply.py` that takes as long as it is told."""

    def __init__(
        self, world: Replication, _target: str, backend: str, _train: bool, variables: Mapping[str, str]
    ) -> None:
        self.world, self.backend = world, backend
        world.started.append(backend)
        world.variables = variables
        world.running += 1

    def wait_until_ready(self) -> int:
        return 1

    def take_turn(self) -> float:
        self.world.turns.append(self.backend)
        return self.world.seconds[self.backend]

    def stop(self) -> None:
        self.world.running -= 1


@pytest.fixture
def replication(monkeypatch: pytest.MonkeyPatch) -> Replication:
    return Replication(monkeypatch)


def test_the_replicated_gain_is_printed_beside_the_promised_one(
    replication: Replication, capsys: pytest.CaptureFixture[str]
) -> None:
    replication.apply.main("a.py:build")
    assert capsys.readouterr().out.splitlines() == [
        "Applied: propagate_layout of 2 operators. The outputs agree with eager's.",
        *(f"Pair {n} of 5: Inductor alone 26.0 ms, with frx 20.0 ms a call, +30 %." for n in range(1, 6)),
        "promised +31 % (+27 to +35), replicated +30 % (+30 to +30 in 5 pairs of processes): within",
    ]
    assert replication.started == [*("inductor", "frx", "frx", "inductor") * 2, "inductor", "frx"]
    assert replication.turns[:16] == ["inductor", "frx", "frx", "inductor"] * 4
    assert replication.turns[16:20] == ["frx", "inductor", "inductor", "frx"]
    assert replication.running == 0
    assert replication.variables == {}


def test_json_has_the_promise_and_the_ratio_of_each_pair(
    replication: Replication, capsys: pytest.CaptureFixture[str]
) -> None:
    replication.apply.main("a.py:build", as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"promise": STATS, "ratios": [pytest.approx(1.3)] * 5}
    assert "Pair 5 of 5" in printed.err


def test_a_trial_with_pooled_memory_is_replicated_with_pooled_memory(
    replication: Replication, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {**TRIED["trial"], "target": "a.py:build", "environment": {"setup": {"allocation": "pooled"}}}
    replication.events["tried"] = [{**TRIED, "trial": measured}]
    monkeypatch.setattr(replication.apply, "read_allocation", lambda: Allocation.DEFAULT)
    replication.apply.main("a.py:build")
    assert capsys.readouterr().out.startswith("Both programs keep the memory that they free")
    assert replication.variables == POOLING_VARIABLES
    # An allocator that the environment has chosen stays.
    monkeypatch.setattr(replication.apply, "read_allocation", lambda: Allocation.CHOSEN)
    replication.apply.main("a.py:build")
    assert replication.variables == {}


@pytest.mark.parametrize(("seconds", "place"), [(0.0205, "below"), (0.0190, "above")])
def test_a_promise_that_is_not_kept_is_said_to_be_so(
    replication: Replication, capsys: pytest.CaptureFixture[str], seconds: float, place: str
) -> None:
    replication.seconds["frx"] = seconds
    replication.apply.main("a.py:build")
    assert capsys.readouterr().out.endswith(f": {place}\n")


@pytest.mark.parametrize(
    ("ratios", "end"),
    [([1.28, 1.30, 1.33], ": within"), ([0.99, 1.30, 1.33], "repeat on an idle machine")],
)
def test_pairs_that_differ_by_more_than_the_promise_are_doubted(
    replication: Replication, ratios: list[float], end: str
) -> None:
    assert replication.apply.compare(ratios, STATS).endswith(end)
    assert replication.apply.compare(ratios, {**STATS, "ci_high": None}).endswith(": within")


@pytest.mark.parametrize("events", [[], [{**APPLIED, "process_id": 2}]], ids=["none", "by another process"])
def test_without_a_promoted_plan_one_pair_is_enough(
    replication: Replication, capsys: pytest.CaptureFixture[str], events: list[dict[str, Any]]
) -> None:
    replication.events["applied"] = events
    replication.apply.main("a.py:build")
    assert capsys.readouterr().out.startswith("Nothing was promoted for this network here")
    assert len(replication.started) == 2
    assert replication.turns == []
    assert replication.running == 0


@pytest.mark.parametrize(
    "events",
    [
        {"applied": [APPLIED, {**APPLIED, "plan": "c" * 16}]},
        {"tried": []},
        {"tried": [{**TRIED, "plan": "c" * 16}]},
        {"tried": [{**TRIED, "trial": {"verdict": "promote"}}]},
        {"tried": [{**TRIED, "trial": {"verdict": "reject", "stats": STATS}}]},
    ],
    ids=["two plans", "no trial", "of another plan", "without statistics", "rejected"],
)
def test_only_the_trial_of_a_single_plan_promises_an_interval(
    replication: Replication, capsys: pytest.CaptureFixture[str], events: dict[str, list[dict[str, Any]]]
) -> None:
    replication.events |= events
    replication.apply.main("a.py:build")
    assert capsys.readouterr().out.splitlines()[-1] == (
        "replicated +30 %; no single trial has promised an interval for it"
    )


NETWORK = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval(), (torch.randn(2, 8, 12, 12),)
"""


@pytest.mark.integration
def test_a_plan_in_the_ledger_is_applied_in_fresh_processes_and_its_promise_found(tmp_path: Path) -> None:
    (tmp_path / "network.py").write_text(NETWORK)
    namespace: dict[str, Any] = {}
    exec(compile(NETWORK, str(tmp_path / "network.py"), "exec"), namespace)

    def replicate() -> str:
        environment = {**os.environ, "FRX_LEDGER": str(tmp_path / "ledger.sqlite3")}
        command = [sys.executable, str(EXAMPLES / "apply.py"), "network.py:build"]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=500
        ).stdout

    assert replicate().startswith("Nothing was promoted")

    def compile_once(compiler: Any) -> None:
        model, args = namespace["build"]()
        assert isinstance(model, nn.Module)
        with torch.no_grad():
            torch.compile(model, backend=compiler)(*args)

    torch._dynamo.reset()
    (signature,), made = everything_made("inductor", compile_once)
    assert made
    torch._dynamo.reset()
    backend.clear()
    trial = json.dumps({"schema": "frx_trial_v1", "verdict": "promote", "stats": STATS})
    decisions = [replace(one, trial=trial) if one.kind is Kind.TRIED else one for one in promotion(signature, made)]
    open_ledger(parse_location(str(tmp_path / "ledger.sqlite3"))).append(decisions)
    said = replicate()
    assert said.startswith(f"Applied: {made[0].rewrite} of ")
    assert "\npromised +31 % (+27 to +35), replicated " in said
