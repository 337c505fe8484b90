from collections.abc import Iterator, Mapping, Sequence

import pytest
import torch
from torch import nn

from frx_graph import backend, rewriting
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.matrix_product import TARGET

PRODUCT = "frx_graph.product.default"

pytestmark = [
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"),
]


def applied(graph) -> list[str]:
    return [candidate.rewrite for candidate in graph.done.applied]


def test_a_linear_layer_is_a_product_forward_and_backward(rewrite) -> None:
    found = rewrite(nn.Linear(7, 5), torch.randn(3, 4, 7, requires_grad=True), train=True)
    assert found.graph(Phase.FORWARD).targets().count(PRODUCT) == 1
    # The gradients of the input and of the weight.
    assert found.graph(Phase.BACKWARD).targets().count(PRODUCT) == 2


def test_a_product_without_a_bias(rewrite) -> None:
    (graph,) = rewrite(torch.mm, torch.randn(3, 4), torch.randn(6, 4).t()).graphs
    assert graph.targets() == [PRODUCT]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x, y: torch.mm(x.double(), y.double()), id="double precision"),
        pytest.param(lambda x, y: torch.mm(x.bfloat16(), y.bfloat16()), id="oneDNN's already"),
        pytest.param(lambda x, y: torch.addmm(x, x, y), id="a bias of two dimensions"),
        pytest.param(lambda x, y: torch.addmm(x[0], x, y, beta=2), id="a factor"),
        pytest.param(lambda x, y: torch.addmm(x[:1, :1].view(1), x, y), id="a bias that is expanded"),
        pytest.param(lambda x, y: torch.bmm(x[None], y[None]), id="a batch"),
        pytest.param(lambda x, y: x[:, :0] @ y[:0], id="nothing to sum"),
        pytest.param(lambda x, y: x[:0] @ y, id="no rows"),
    ],
)
def test_other_products_stay(rewrite, program) -> None:
    for graph in rewrite(program, torch.randn(4, 4), torch.randn(4, 4)).graphs:
        assert PRODUCT not in graph.targets()


def test_a_convolution_of_single_pixels_in_channels_last_is_a_product(rewrite) -> None:
    program = nn.Conv2d(8, 6, 1)
    (graph,) = rewrite(program, torch.randn(2, 8, 5, 7).to(memory_format=torch.channels_last)).graphs
    # With everything forced, the convolution is first laid out as plain, where it is no product.
    assert PRODUCT not in graph.targets()
    (graph,) = rewrite(program, torch.randn(2, 8, 5, 7)).graphs
    assert PRODUCT in graph.targets()


@pytest.mark.parametrize(
    "how", [{"kernel_size": 3}, {"stride": 2}, {"padding": 1}, {"groups": 2}, {"kernel_size": (1, 2)}], ids=str
)
def test_convolutions_that_look_at_more_or_less_than_each_pixel_stay(rewrite, how) -> None:
    (graph,) = rewrite(nn.Conv2d(8, 6, **{"kernel_size": 1, **how}), torch.randn(2, 8, 5, 7)).graphs
    assert applied(graph) == ["propagate_layout"]


def test_symbolic_sizes(rewrite) -> None:
    (graph,) = rewrite(nn.Linear(7, 5), torch.randn(3, 7), dynamic=True).graphs
    assert PRODUCT in graph.targets()
    (graph,) = rewrite(nn.Conv2d(8, 6, 1), torch.randn(3, 8, 5, 7), dynamic=True).graphs
    assert PRODUCT not in graph.targets()


@pytest.mark.parametrize("faster", [True, False])
def test_measured_times_decide(rewrite, monkeypatch, faster: bool) -> None:
    def seconds(groups: Iterator[Sequence[OperatorSignature]], _device_type: str) -> Mapping[OperatorSignature, float]:
        return {call: 1.0 + (call.target == TARGET) * (-0.2 if faster else 0.2) for group in groups for call in group}

    monkeypatch.setattr(rewriting, "call_seconds", seconds)
    (graph,) = rewrite(nn.Linear(7, 5), torch.randn(3, 7), plan="solved").graphs
    assert (PRODUCT in graph.targets()) is faster
    if faster:
        (candidate,) = graph.done.applied
        assert candidate.predicted_seconds == pytest.approx(0.2)


def test_what_cannot_be_timed_stays_and_is_told(rewrite, monkeypatch) -> None:
    monkeypatch.setattr(rewriting, "call_seconds", lambda _groups, _device_type: {})
    (graph,) = rewrite(nn.Linear(7, 5), torch.randn(3, 7), plan="solved").graphs
    assert PRODUCT not in graph.targets()
    assert [refusal.subject for refusal in graph.done.refused] == ["onednn_products"]


def test_under_inductor() -> None:
    torch._dynamo.reset()
    backend.clear()
    model = nn.Sequential(nn.Conv2d(8, 6, 3), nn.Conv2d(6, 6, 1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 6 * 6, 5))
    image = torch.randn(2, 8, 8, 8)
    with torch._inductor.utils.fresh_cache():
        compiled = torch.compile(model, backend="frx", options={"plan": "all"})
        made = compiled(image)
    made.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    expected = model(image)
    expected.square().sum().backward()
    torch.testing.assert_close(made, expected)
    torch.testing.assert_close(gradients, [parameter.grad for parameter in model.parameters()])
    assert made.stride() == expected.stride()
    changed = {
        (graph.phase, candidate.rewrite): len(candidate.nodes)
        for graph in backend.rewritten()
        for candidate in graph.applied
    }
    assert changed[Phase.FORWARD, "onednn_products"] == 2
    assert changed[Phase.BACKWARD, "onednn_products"] == 2


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((1, 4), (4, 1)), ((0, 4), (4, 5)), ((3, 0), (0, 5))], ids=str)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_the_operator(shapes, biased: bool, turned: bool) -> None:
    x, w = map(torch.randn, shapes)
    if turned:
        x, w = x.t().contiguous().t(), w.t().contiguous().t()
    bias = torch.randn(w.shape[1]) if biased else None
    expected = torch.mm(x, w) if bias is None else torch.addmm(bias, x, w)
    made = torch.ops.frx_graph.product(x, w, bias)
    torch.testing.assert_close(made, expected)
    assert made.stride() == expected.stride()
    torch.library.opcheck(
        torch.ops.frx_graph.product.default, (x, w, bias), test_utils=("test_schema", "test_faketensor")
    )
