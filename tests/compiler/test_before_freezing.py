"""Rewrites of graphs whose weights Inductor freezes: before it does, after it, and again from a recorded plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import frx_graph
from frx_graph.compiler import inductor
from frx_graph.compiler.inner_compiler import make_planned_backend
from frx_graph.compiler.plans import make_proposing_plan, make_recorded_plan
from frx_graph.compiler.rewrite_log import LOG
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.ops.onednn_linear import TARGET
from frx_graph.options import BackendOptions
from frx_graph.plan import Plan
from frx_graph.records import Candidate

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("nothing_compiled", "onednn_is_missing"),
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
]


class Padded(nn.Module):
    """Depthwise convolutions behind padding on one side, and on both; then projections for attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(16, 16, 3, stride=2, groups=16), nn.BatchNorm2d(16), nn.ReLU6())
        self.second = nn.Conv2d(16, 16, 3, groups=16)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(F.pad(x, (0, 1, 0, 1)))
        x = self.second(F.pad(x, (1, 1, 1, 1))).flatten(2).transpose(1, 2).contiguous()
        q, k, v = (one(x).unflatten(-1, (2, 8)).transpose(1, 2) for one in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators of each frozen graph as Inductor gets it behind all passes."""
    found: list[str] = []
    after = inductor.FrozenPlan.__call__

    def seen(self: inductor.FrozenPlan, graph: fx.Graph) -> None:
        after(self, graph)
        found.extend(str(node.target) for node in graph.nodes if node.op == "call_function")

    monkeypatch.setattr(inductor.FrozenPlan, "__call__", seen)
    return found


def image() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 16, 12, 12)


def applied() -> dict[str, int]:
    return {one.rewrite: len(one.nodes) for graph in LOG.read_all() for one in graph.applied}


def test_padding_and_projections_are_rewritten_before_weights_are_constants(targets: list[str]) -> None:
    model = Padded().eval()
    compiled = frx_graph.compile(model, options={"plan": "solved", "freeze": True})
    with torch.no_grad():
        torch.testing.assert_close(compiled(image()), model(image()))
        assert compiled(image()).stride() == model(image()).stride()
    assert applied()["fold_padding"] == 2
    assert applied()["merged_products"] == 3
    assert not any("constant_pad_nd" in one or "cat." in one for one in targets)
    assert len([one for one in targets if any(part in one for part in ("linear", "frx_graph.product", "mm"))]) == 1


def test_weights_that_change_are_folded_anew() -> None:
    model = Padded().eval()
    compiled = frx_graph.compile(model, options={"plan": "solved", "freeze": True})
    with torch.no_grad():
        compiled(image())
        model.first[0].weight.mul_(2)
        model.k.weight.add_(0.5)
        torch.testing.assert_close(compiled(image()), model(image()))
    assert [one.rewrite for graph in LOG.read_all() for one in graph.applied].count("fold_padding") == 2


def run_chosen(plan: Plan, model: nn.Module) -> Tensor:
    def fails(error: Exception) -> None:
        raise error

    compiled = torch.compile(model, backend=make_planned_backend(BackendOptions(), plan, fails))
    with torch.no_grad():
        found: Tensor = compiled(image())
    return found


@pytest.mark.skipif(not hasattr(torch.ops.mkl, "_mkl_linear"), reason="this torch has no MKL")
@pytest.mark.parametrize("choice", ["freezing", "freezing_cpp_wrapper"])
def test_a_recorded_plan_makes_the_same_of_both_graphs(
    choice: str, targets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prefer_onednn(
        groups: Sequence[Sequence[OperatorSignature]], _device_type: str
    ) -> Mapping[OperatorSignature, float]:
        return {call: 0.5 if call.target == TARGET else 1.0 for group in groups for call in group}

    monkeypatch.setattr(inductor, "time_calls", prefer_onednn)
    model = Padded().eval()
    chosen = Candidate("inner_choice", "", (), (choice,))
    expected = model(image())
    rewrites = ("fold_padding", "merged_products", "frozen_products")
    torch.testing.assert_close(run_chosen(make_proposing_plan(rewrites, (chosen,)), model), expected)
    made = [replace(one, graph_id=graph.signature) for graph in LOG.read_all() for one in graph.applied]
    recorded = [one if one.rewrite != "inner_choice" else chosen for one in made]
    proposed, names = list(targets), applied()
    assert names.keys() == {*rewrites, "inner_choice"}

    def never(*_: Any) -> Any:
        raise AssertionError("nothing is measured for a recorded plan")

    monkeypatch.setattr(inductor, "time_calls", never)
    torch._dynamo.reset()
    LOG.clear()
    targets.clear()
    torch.testing.assert_close(run_chosen(make_recorded_plan(tuple(recorded)), model), expected)
    assert applied() == names
    assert targets == proposed


@pytest.mark.skipif(not hasattr(torch.ops.mkl, "_mkl_linear"), reason="this torch has no MKL")
def test_products_that_the_graph_does_not_have_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "hash_graph", lambda _graph: "0" * 16)
    chosen = Candidate("inner_choice", "", (), ("freezing",))
    plan = make_recorded_plan((chosen, Candidate("frozen_products", "0" * 16, ("no_such_node",))))
    model = Padded().eval()
    failures: list[Exception] = []
    compiled = torch.compile(model, backend=make_planned_backend(BackendOptions(), plan, failures.append))
    with torch.no_grad():
        torch.testing.assert_close(compiled(image()), model(image()))
    assert [str(failure) for failure in failures] == ["the candidate belongs to another graph"]
    assert "frozen_products" not in applied()


@pytest.mark.gives_way
def test_a_failure_before_freezing_leaves_the_graph_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(inductor, "rewrite_before_freezing", fail)
    model = Padded().eval()
    compiled = frx_graph.compile(model, options={"plan": "solved", "freeze": True})
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="planted"):
        torch.testing.assert_close(compiled(image()), model(image()))


class Branches(nn.Module):
    """A condition, whose branches take tensors that are no weights, in a graph with as many weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(1)) for _ in range(6))

    def forward(self, y: Tensor, a: Tensor, b: Tensor, pred: Tensor) -> Tensor:
        def projects(y: Tensor, a: Tensor, b: Tensor) -> Tensor:
            return F.linear(y, a).transpose(0, 1).contiguous() + F.linear(y, b).transpose(0, 1).contiguous()

        def scales(y: Tensor, a: Tensor, b: Tensor) -> Tensor:
            return (y.transpose(0, 1) * a.sum() * b.sum()).contiguous()

        return torch.cond(pred, projects, scales, (y, a, b)) + sum(self.weights)


class Returned(nn.Module):
    """Two weights of which views are returned, which Inductor therefore does not freeze."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.randn(16, 16))

    def forward(self, y: Tensor) -> tuple[Tensor, ...]:
        first, second = F.linear(y, self.a), F.linear(y, self.b)
        return first.transpose(0, 1).contiguous(), second.transpose(0, 1).contiguous(), self.a.t(), self.b[1:]


ARGUMENTS = (torch.randn(2, 6, 16), torch.randn(16, 16), torch.randn(16, 16), torch.tensor(True))


@pytest.mark.parametrize(("model", "args"), [(Branches(), ARGUMENTS), (Returned(), ARGUMENTS[:1])])
def test_what_inductor_does_not_freeze_is_no_constant(model: nn.Module, args: tuple[Tensor, ...]) -> None:
    compiled = frx_graph.compile(model.eval(), options={"plan": "all", "freeze": True})
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), model(*args))
    assert "merged_products" not in applied()
