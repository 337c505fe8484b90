from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import fx, nn
from torch._inductor.utils import fresh_cache

import frx_graph
from frx_graph import backend
from frx_graph.compiler import inductor
from frx_graph.compiler.operator_times import time_calls
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.ops.onednn_linear import TARGET
from frx_graph.passes.rewrites.frozen_products import use_faster_products

pytestmark = [
    pytest.mark.usefixtures("onednn_is_missing"),
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
    pytest.mark.skipif(not hasattr(torch.ops.mkl, "_mkl_linear"), reason="this torch has no MKL"),
]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    backend.clear()


def frozen(model: nn.Module) -> nn.Module:
    return frx_graph.compile(model, options={"plan": "solved", "freeze": True})


@pytest.mark.integration
@pytest.mark.parametrize("faster", [True, False])
def test_packed_products_give_way_where_they_are_slower(monkeypatch: pytest.MonkeyPatch, faster: bool) -> None:
    asked: list[OperatorSignature] = []

    def seconds(groups: Sequence[Sequence[OperatorSignature]], _device_type: str) -> Mapping[OperatorSignature, float]:
        asked.extend(call for group in groups for call in group)
        return {call: 1.0 + (call.target == TARGET) * (-0.2 if faster else 0.2) for call in asked}

    monkeypatch.setattr(inductor, "time_calls", seconds)
    model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 16, bias=False)).eval()
    x = torch.randn(20, 64)
    with torch.no_grad(), fresh_cache():
        torch.testing.assert_close(frozen(model)(x), model(x))
    applied = [candidate for graph in backend.rewritten() for candidate in graph.applied]
    assert [len(candidate.nodes) for candidate in applied] == ([2] if faster else [])
    assert len(asked) == 4


@pytest.mark.integration
def test_the_calls_that_are_compared_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    def counted(groups: Sequence[Sequence[OperatorSignature]], device_type: str) -> Mapping[OperatorSignature, float]:
        timed = time_calls(groups, device_type)
        seen.append((sum(map(len, groups)), len(timed)))
        return timed

    monkeypatch.setattr(inductor, "time_calls", counted)
    with torch.no_grad(), fresh_cache():
        frozen(nn.Linear(64, 32).eval())(torch.randn(20, 64))
    assert seen == [(2, 2)]


@pytest.mark.gives_way
def test_a_failure_leaves_the_program_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(inductor, "use_faster_products", broken)
    model = nn.Linear(64, 32).eval()
    x = torch.randn(20, 64)
    with torch.no_grad(), fresh_cache(), pytest.warns(RuntimeWarning, match="a bug"):
        torch.testing.assert_close(frozen(model)(x), model(x))


def test_a_replaced_product_computes_the_same_and_keeps_what_is_known_of_it() -> None:
    x, weight, bias = torch.randn(20, 64), torch.randn(32, 64), torch.randn(32)
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, 20)
    graph = fx.Graph()
    inputs = []
    for name, value in [("x", x), ("packed", packed), ("weight", weight), ("bias", bias)]:
        inputs.append(graph.placeholder(name))
        inputs[-1].meta["val"] = value
    product = graph.call_function(torch.ops.mkl._mkl_linear.default, (*inputs, 20))
    product.meta |= {"val": torch.empty(20, 32), "stack_trace": "line 3"}
    graph.output(product)
    expected = fx.GraphModule(nn.Module(), graph)(x, packed, weight, bias)

    def measure(calls: Sequence[tuple[OperatorSignature, ...]]) -> Mapping[OperatorSignature, float]:
        return {call: 0.5 if call.target == TARGET else 1.0 for pair in calls for call in pair}

    done = use_faster_products(graph, "0/0", measure)
    assert done is not None
    assert (done.nodes, done.predicted_seconds) == ((product.name,), 0.5)
    (result,) = graph.output_node().args
    assert isinstance(result, fx.Node)
    assert result.target is torch.ops.frx_graph.product.default
    assert result.meta == product.meta
    torch.testing.assert_close(fx.GraphModule(nn.Module(), graph)(x, packed, weight, bias), expected)
