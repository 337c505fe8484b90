import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from frx_graph import backend
from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler import rewrite_pipeline
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.ops.onednn_linear import TARGET

PRODUCT = "frx_graph.product.default"
CONVOLUTION_BACKWARD = "aten.convolution_backward.default"

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


@pytest.mark.parametrize(
    "turned",
    [
        pytest.param(lambda w: w[:, :1].expand(4, 6), id="expanded"),
        pytest.param(lambda w: w[:1, :1].expand(4, 6), id="expanded twice"),
        pytest.param(lambda w: w.expand(2, 4, 6)[:, 1], id="a row repeated"),
        pytest.param(lambda w: w.t()[::2, 1:], id="with gaps"),
    ],
)
def test_weights_that_lie_in_any_way(rewrite, turned: Callable[[Tensor], Tensor]) -> None:
    weight = torch.randn(4, 6)
    program = lambda x, w: x[:, : turned(w).shape[0]] @ turned(w)  # noqa: E731
    (graph,) = rewrite(program, torch.randn(3, 4), weight).graphs
    assert PRODUCT in graph.targets()


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
        pytest.param(lambda x, y: x @ y.view(16)[:7].unfold(0, 4, 1), id="windows that slide"),
        pytest.param(lambda x, y: torch.addmm(x[0], x, y.view(16)[:7].unfold(0, 4, 1)), id="and a bias"),
        pytest.param(lambda x, y: torch.bmm(x[None], y[None]), id="a batch"),
        pytest.param(lambda x, y: x[:, :0] @ y[:0], id="nothing to sum"),
        pytest.param(lambda x, y: x[:0] @ y, id="no rows"),
    ],
)
def test_other_products_stay(rewrite, program) -> None:
    for graph in rewrite(program, torch.randn(4, 4), torch.randn(4, 4)).graphs:
        assert PRODUCT not in graph.targets()


FORWARD, TO_INPUT, TO_WEIGHT = (
    f"frx_graph.unfolded_{name}.default" for name in ("convolution", "input_gradient", "weight_gradient")
)
SEES_ONE_PIXEL = nn.Conv2d(8, 6, 1)
HEAVY = nn.Conv2d(64, 32, 3, padding=1, bias=False)
SMALL = (2, 64, 3, 4)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        pytest.param(nn.Conv2d(8, 6, 1, stride=2), (2, 8, 9, 9), id="every other pixel"),
        pytest.param(HEAVY, SMALL, id="a weight larger than the windows"),
        pytest.param(nn.Conv2d(64, 32, (3, 5), (2, 1), (0, 2)), SMALL, id="sides of different length"),
    ],
)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_convolutions_are_products_of_unfolded_images(rewrite, layer, shape, memory_format) -> None:
    # With everything forced, an image in either order is first laid out in the other one.
    image = torch.randn(shape).to(memory_format=memory_format).requires_grad_()
    found = rewrite(layer, image, train=True)
    assert FORWARD in found.graph(Phase.FORWARD).targets()
    backward = found.graph(Phase.BACKWARD).targets()
    assert (TO_INPUT in backward, TO_WEIGHT in backward) == (True, True)
    assert CONVOLUTION_BACKWARD not in backward


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        pytest.param(SEES_ONE_PIXEL, (2, 8, 9, 7), id="pixels"),
        pytest.param(SEES_ONE_PIXEL, (1, 8, 9, 7), id="one image"),
        pytest.param(nn.Conv2d(8, 6, 1, bias=False), (2, 8, 4, 3), id="no bias"),
        pytest.param(nn.Conv2d(8, 1, 1), (2, 8, 4, 3), id="to one channel"),
    ],
)
def test_convolutions_of_single_pixels_are_products_of_views(rewrite, layer, shape) -> None:
    # With everything forced, a plain image is laid out in channels-last.
    found = rewrite(layer, torch.randn(shape, requires_grad=True), train=True)
    for phase, products in ((Phase.FORWARD, 1), (Phase.BACKWARD, 2)):
        targets = found.graph(phase).targets()
        assert targets.count(PRODUCT) == products
        assert not {FORWARD, TO_INPUT, TO_WEIGHT, CONVOLUTION_BACKWARD} & set(targets)


def convolved(kernel: int, channels: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def program(x: Tensor, weight: Tensor, biases: Tensor) -> Tensor:
        return nn.functional.conv2d(x, weight, biases[:, 1], padding=kernel // 2)

    return program


@pytest.mark.parametrize(("kernel", "channels", "side"), [(1, 8, 9), (3, 32, 3)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_bias_with_gaps_is_left_to_torch(rewrite, kernel: int, channels: int, side: int, memory_format) -> None:
    image = torch.randn(2, channels, side, side).to(memory_format=memory_format)
    weight = (torch.randn(channels, channels, kernel, kernel) / 10).requires_grad_()
    biases = torch.randn(channels, 2, requires_grad=True)
    # The same with a bias that oneDNN can read is rewritten.
    (graph,) = rewrite(convolved(kernel, channels), image, weight, torch.randn(2, channels).t()).graphs
    assert {PRODUCT, FORWARD} & set(graph.targets())
    (graph,) = rewrite(convolved(kernel, channels), image, weight.detach(), biases.detach()).graphs
    assert not {PRODUCT, FORWARD} & set(graph.targets())
    rewrite(convolved(kernel, channels), image, weight, biases, train=True)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("weight_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("channels", [(8, 6), (1, 6), (8, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 1, 1), (3, 1, 1), (1, 2, 1)], ids=str)
def test_products_of_pixels_in_every_order(rewrite, memory_format, weight_format, channels, shape) -> None:
    # The fixture compares values, gradients and strides.
    batch, height, width = shape
    layer = nn.Conv2d(*channels, 1).to(memory_format=weight_format)
    image = torch.randn(batch, channels[0], height, width).to(memory_format=memory_format).requires_grad_()
    found = rewrite(layer, image, train=True)
    assert {PRODUCT, FORWARD} & set(found.graph(Phase.FORWARD).targets())


def test_input_gradient_is_not_computed_if_not_required(rewrite) -> None:
    backward = rewrite(HEAVY, torch.randn(SMALL), train=True).graph(Phase.BACKWARD).targets()
    assert (TO_INPUT in backward, TO_WEIGHT in backward) == (False, True)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        pytest.param(HEAVY, (2, 64, 9, 9), id="windows larger than the weight"),
        pytest.param(nn.Conv2d(8, 6, 1, groups=2), (2, 8, 5, 5), id="groups"),
        pytest.param(nn.Conv2d(64, 32, 3, dilation=2), (1, 64, 5, 5), id="gaps in the windows"),
        pytest.param(nn.ConvTranspose2d(64, 32, 3), (1, 64, 2, 2), id="transposed"),
        pytest.param(nn.Conv3d(8, 6, 1), (2, 8, 3, 3, 3), id="three dimensions"),
        pytest.param(nn.Conv1d(8, 6, 1), (2, 8, 5), id="one dimension"),
    ],
)
def test_other_convolutions_stay(rewrite, layer, shape) -> None:
    (graph,) = rewrite(layer, torch.randn(shape)).graphs
    assert FORWARD not in graph.targets()
    (graph,) = rewrite(copy.deepcopy(SEES_ONE_PIXEL).double(), torch.randn(2, 8, 5, 5, dtype=torch.double)).graphs
    assert FORWARD not in graph.targets()


FORMS = {
    "both": {TO_INPUT: 0.1, TO_WEIGHT: 0.1},
    "the weight's": {TO_INPUT: 9.0, TO_WEIGHT: 0.1},
    "the input's": {TO_INPUT: 0.1, TO_WEIGHT: 9.0},
    "neither": {TO_INPUT: 9.0, TO_WEIGHT: 9.0},
}


@pytest.mark.integration
@pytest.mark.parametrize("form", FORMS)
def test_each_gradient_takes_its_own_fastest_form(rewrite, monkeypatch, form: str) -> None:
    prices = FORMS[form]

    def seconds(groups: Iterable[Sequence[OperatorSignature]], _device_type: str) -> dict[OperatorSignature, float]:
        found: dict[OperatorSignature, float] = {}
        for call in (call for group in groups for call in group):
            # Torch's gradients take as long together as each by itself, and one more.
            by_torch = 0.5 + 0.5 * sum(map(bool, call.args[-1])) if call.target == CONVOLUTION_BACKWARD else 1.0
            found[call] = prices.get(call.target, by_torch)
        return found

    monkeypatch.setattr(rewrite_pipeline, "time_under_load", lambda *asked: (seconds(*asked), False))
    image = torch.randn(SMALL, requires_grad=True)
    backward = rewrite(HEAVY, image, train=True, plan="solved").graph(Phase.BACKWARD).targets()
    expected = {target for target, price in prices.items() if price < 1}
    assert expected == {target for target in backward if "unfolded" in target}
    assert (CONVOLUTION_BACKWARD in backward) is (form != "both")


def test_symbolic_sizes(rewrite) -> None:
    (graph,) = rewrite(nn.Linear(7, 5), torch.randn(3, 7), dynamic=True).graphs
    assert PRODUCT in graph.targets()
    (graph,) = rewrite(nn.Conv2d(8, 6, 1), torch.randn(3, 8, 5, 7), dynamic=True).graphs
    assert FORWARD not in graph.targets()


@pytest.mark.parametrize("faster", [True, False])
def test_measured_times_decide(rewrite, monkeypatch, faster: bool) -> None:
    def seconds(groups: Iterator[Sequence[OperatorSignature]], _device_type: str) -> Mapping[OperatorSignature, float]:
        return {call: 1.0 + (call.target == TARGET) * (-0.2 if faster else 0.2) for group in groups for call in group}

    monkeypatch.setattr(rewrite_pipeline, "time_under_load", lambda *asked: (seconds(*asked), False))
    (graph,) = rewrite(nn.Linear(7, 5), torch.randn(3, 7), plan="solved").graphs
    assert (PRODUCT in graph.targets()) is faster
    if faster:
        (candidate,) = graph.done.applied
        assert candidate.predicted_seconds == pytest.approx(0.2)


def test_untimed_product_stays_and_is_reported(rewrite, monkeypatch) -> None:
    monkeypatch.setattr(rewrite_pipeline, "time_under_load", lambda _groups, _device_type: ({}, False))
    (graph,) = rewrite(nn.Linear(7, 5), torch.randn(3, 7), plan="solved").graphs
    assert PRODUCT not in graph.targets()
    assert [refusal.subject for refusal in graph.done.refused] == ["onednn_products"]


@pytest.mark.integration
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
    # The gradients of the linear layer, and those of the convolution of single pixels.
    assert changed[Phase.BACKWARD, "onednn_products"] == 3


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
