import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import frx_graph
from frx_graph.capture.graph_signature import hash_graph
from frx_graph.compiler import inductor, plans
from frx_graph.compiler.code_fingerprint import list_compiling_files
from frx_graph.plan import Plan
from frx_graph.records import Candidate

FIRST = Candidate("propagate_layout", "0/0", ("conv", "relu"), ("0,2,3,1", "0,2,3,1"), 1e-3)
SECOND = Candidate("hoist_copy", "0/0", ("clone",))
PLAN = Plan("solved", ("hoist_copy", "propagate_layout"), "code", ("cpu", "cuda"), "graph", (FIRST, SECOND))

CHANGES = {
    "policy": replace(PLAN, policy="all"),
    "order of rewrites": replace(PLAN, rewrites=PLAN.rewrites[::-1]),
    "code": replace(PLAN, code="other"),
    "machine": replace(PLAN, machine=("cpu", "other")),
    "graph": replace(PLAN, graph="other"),
    "order": replace(PLAN, candidates=(SECOND, FIRST)),
    "one less": replace(PLAN, candidates=(FIRST,)),
    "rewrite": replace(PLAN, candidates=(replace(FIRST, rewrite="backward_layout"), SECOND)),
    "nodes": replace(PLAN, candidates=(replace(FIRST, nodes=("conv", "relu_1")), SECOND)),
    "choices": replace(PLAN, candidates=(replace(FIRST, choices=("0,2,3,1", "any")), SECOND)),
    "node or choice": replace(PLAN, candidates=(replace(FIRST, nodes=("conv",), choices=("relu",)), SECOND)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_plan_has_another_hash(change: str) -> None:
    assert CHANGES[change].hash != PLAN.hash


def test_graph_ids_and_predictions_are_not_part_of_a_plan() -> None:
    same = replace(FIRST, graph_id="7/1", predicted_seconds=2e-3)
    assert replace(PLAN, candidates=(same, SECOND)).hash == PLAN.hash


def test_the_hash_is_the_same_in_every_process() -> None:
    script = f"from frx_graph.plan import Plan; from frx_graph.records import Candidate;print(({PLAN!r}).hash)"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == PLAN.hash


def test_graph_compiled_under_another_plan_is_not_found_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def uuid(policy: str = "all", own_choice: bool = True) -> object:
        plan = plans.make_current_plan(policy)
        return inductor.InductorPlan(plan, own_choice, lambda _done: None, lambda _error: None).uuid()

    before = uuid()
    assert uuid() == before
    assert uuid("solved") != before
    assert uuid(own_choice=False) != before
    monkeypatch.setattr(plans, "compute_code_hash", lambda: "other")
    assert uuid() != before


LOADED = """
import json, os, sys, torch
from torch import nn
from frx_graph.compiler.code_fingerprint import list_compiling_files

model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
compiled = torch.compile(model, backend="frx", options={"plan": "all", "inner": "eager"})
compiled(torch.randn(2, 3, 16, 16)).sum().backward()
hashed = set(map(os.path.realpath, list_compiling_files()))
ours = {name: module.__file__ for name, module in sys.modules.items() if name.startswith("frx_graph.")}
print(json.dumps([name for name, file in ours.items() if file and os.path.realpath(file) not in hashed]))
"""


@pytest.mark.integration
def test_modules_that_rewrite_graphs_are_part_of_the_code_hash() -> None:
    """Trials compare, and reports tell: both change nothing of a graph."""
    found = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=240)
    (*_, answer) = found.stdout.splitlines()
    rooms = {name.split(".")[1] for name in json.loads(answer)}
    assert rooms <= {"trials", "reports"}
    root = Path(frx_graph.__file__).parents[1]
    folders = {folder for path in list_compiling_files() for folder in Path(path).relative_to(root).parent.parts}
    assert not folders & {"ncu", "reconcile", "runs", "service"}
    assert folders >= {"capture", "rewrites", "solver", "operators"}


def test_a_graph_is_known_by_what_it_computes_on_what() -> None:
    def signature(model: nn.Module, *shape: int) -> str:
        traced = fx.symbolic_trace(model)
        for node in traced.graph.find_nodes(op="placeholder"):
            node.meta["val"] = torch.empty(shape)
        return hash_graph(traced.graph)

    class Sum(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.dim = dim

        def forward(self, x):
            return torch.sum(x, self.dim)

    assert signature(Sum(0), 2, 3) == signature(Sum(0), 2, 3)
    assert signature(Sum(1), 2, 3) != signature(Sum(0), 2, 3)
    assert signature(Sum(0), 2, 4) != signature(Sum(0), 2, 3)


def test_a_graph_is_the_same_on_another_device_of_a_kind() -> None:
    """Each rank of a distributed program has a device of its own."""

    def signature(first: str, second: str) -> str:
        def program(x, y):
            return (x + torch.ones(2, device=first)).to(second) + y

        with FakeTensorMode():
            made = make_fx(program)(torch.empty(2, device=first), torch.empty(2, device=second))
        return hash_graph(made.graph)

    assert signature("cuda:0", "cuda:0") == signature("cuda:1", "cuda:1")
    assert signature("cuda:0", "cuda:1") == signature("cuda:3", "cuda:0")
    assert signature("cuda:0", "cuda:1") != signature("cuda:0", "cuda:0")
    assert signature("cuda:0", "cuda:0") != signature("cpu", "cpu")


def test_a_device_that_a_program_names_is_one_too() -> None:
    def signature(name: str) -> str:
        graph = fx.Graph()
        x = graph.placeholder("x")
        graph.output(graph.call_method("to", (x, name)))
        return hash_graph(graph)

    assert signature("cuda:1") == signature("cuda:0")
    assert signature("cuda:1") != signature("cpu")
    assert signature("float:1") != signature("float:0")
