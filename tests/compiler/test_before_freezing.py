"""Rewrites of graphs whose weights Inductor freezes: before it does, after it, and again from a recorded plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._inductor.utils import fresh_cache

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

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore:frx applies rewrites")]


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


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    LOG.clear()
    with fresh_cache():
        yield
    LOG.clear()


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


def run_chosen(plan: Plan, model: nn.Module) -> Tensor:
    def fails(error: Exception) -> None:
        raise error

    backend = make_planned_backend(BackendOptions(), plan, fails)
    with torch.no_grad():
        found: Tensor = torch.compile(model, backend=backend)(image())
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


def test_products_of_another_graph_are_refused() -> None:
    plan = make_recorded_plan((Candidate("frozen_products", "0" * 16, ("addmm",)),))
    model = Padded().eval()
    chosen = Candidate("inner_choice", "", (), ("freezing",))
    with_choice = replace(plan, rewrites=("inner_choice", *plan.rewrites), candidates=(chosen, *plan.candidates))
    torch.testing.assert_close(run_chosen(with_choice, model), model(image()))
    assert "frozen_products" not in applied()
