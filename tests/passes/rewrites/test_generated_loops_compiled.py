"""Convolutions around poolings and upsampling, under Inductor, with given times: what it really generates."""

import re
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional

from frx_graph import backend
from frx_graph.compiler import operator_times
from frx_graph.facts.layout import get_dimension_order
from frx_graph.facts.operator_signature import GeneratedCall
from frx_graph.measure.inductor import generated_timing
from frx_graph.passes.layouts.dimension_map import make_plain_order
from frx_graph.passes.rewrites.layout.anchor_calls import list_anchor_orders
from frx_graph.passes.rewrites.layout.costs import AnchorSeconds
from frx_graph.passes.rewrites.rewrite import RewriteSubject

pytestmark = [
    pytest.mark.usefixtures("nothing_compiled", "no_graph_loses"),
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
]

BETWEEN = {
    "maximum": lambda x: functional.max_pool2d(torch.relu(x), 3, 2, 1),
    "average": lambda x: functional.avg_pool2d(x, 3, 1, 1),
    "adaptive": lambda x: functional.adaptive_avg_pool2d(x, 4),
    "nearest": lambda x: functional.interpolate(torch.relu(x), scale_factor=2, mode="nearest"),
    "bilinear": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
}


class Network(nn.Module):
    def __init__(self, between: str) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.second(BETWEEN[self.between](self.first(x)))


@pytest.fixture
def last_is_faster(monkeypatch: pytest.MonkeyPatch) -> list[GeneratedCall]:
    """Convolutions cost the same in both orders, and loops nothing in channels-last; the loops that were asked for."""
    asked: list[GeneratedCall] = []

    def convolutions(subject: RewriteSubject, *, prepared: bool) -> AnchorSeconds:
        return {m.op.node: dict.fromkeys(list_anchor_orders(m), 1.0) for m in subject.anchors}

    def loops(groups, _device_type: str) -> Mapping[GeneratedCall, float]:
        calls = [call for group in groups for call in group]
        asked.extend(calls)
        return {call: float(is_plain(call)) for call in calls}

    monkeypatch.setattr(operator_times, "time_anchors", convolutions)
    monkeypatch.setattr(operator_times, "measure_bandwidth", lambda _facts: 1e9)
    monkeypatch.setattr(operator_times, "get_generated_seconds", loops)
    return asked


def is_plain(call: GeneratedCall) -> bool:
    image = call.signature.tensors[0]
    return get_dimension_order(image.shape, image.strides) == make_plain_order(image.shape)


def solved(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="frx", options={"plan": "solved"})


def code_of_the_same(model: nn.Module, x: Tensor) -> str:
    """What Inductor writes for the model's solved plan, which gives the values and strides that eager does."""
    with torch.no_grad():
        expected = model(x)
        result, (code,) = run_and_get_code(solved(model), x)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    assert result.stride() == expected.stride()
    return code


@pytest.mark.integration
@pytest.mark.parametrize("between", BETWEEN)
def test_the_order_that_was_chosen_is_what_is_generated(between: str, last_is_faster: list[GeneratedCall]) -> None:
    torch.manual_seed(0)
    model, x = Network(between).eval(), torch.randn(2, 4, 8, 8)
    code = code_of_the_same(model, x)
    assert last_is_faster
    (done,) = backend.rewritten()
    assert [candidate.rewrite for candidate in done.applied if candidate.rewrite == "propagate_layout"]
    # Converted are the input, and the result back; what lies between the convolutions is made once, in channels-last.
    images = re.findall(r"empty_strided_cpu\((\(2, \d+, \d+, \d+\)), (\(.*?\))", code)
    orders = [get_dimension_order(*map(_numbers, image)) for image in images]
    assert orders.count((0, 2, 3, 1)) == len(orders) - 1
    assert orders[-1] == (0, 1, 2, 3)
    middle = [image for image in images if _numbers(image[0])[1] == 16]
    # An average of what one convolution made may be written over it.
    assert len(middle) <= 1


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


class JoinedImages(nn.Module):
    """What a decoder does with images of several sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(4, 16, 3, stride=2, padding=1)
        self.last = nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        images = [self.first(x), self.second(x)]
        return self.last(torch.cat([functional.interpolate(image, (12, 12), mode="bilinear") for image in images], 1))


@pytest.mark.integration
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_upsampled_images_are_written_side_by_side(
    memory_format: torch.memory_format, last_is_faster: list[GeneratedCall]
) -> None:
    torch.manual_seed(0)
    model, x = JoinedImages().eval(), torch.randn(2, 4, 8, 8).to(memory_format=memory_format)
    code = code_of_the_same(model, x)
    assert last_is_faster
    joined = re.findall(r"empty_strided_cpu\((\(2, 32, 12, 12\)), (\(.*?\))", code)
    assert [get_dimension_order(*map(_numbers, image)) for image in joined] == [(0, 2, 3, 1)]
    assert not re.findall(r"empty_strided_cpu\(\(2, 16, 12, 12\)", code)


@pytest.mark.integration
@pytest.mark.parametrize("between", ["maximum", "bilinear"])
def test_a_step_of_training_gives_the_same(between: str, last_is_faster: list[GeneratedCall]) -> None:
    torch.manual_seed(0)
    model, twin = Network(between), Network(between)
    twin.load_state_dict(model.state_dict())
    x = torch.randn(2, 4, 8, 8)
    expected, result = twin(x), solved(model)(x)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    assert result.stride() == expected.stride()
    expected.square().sum().backward()
    result.square().sum().backward()
    for ours, own in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, own.grad, rtol=1e-3, atol=1e-3)
        assert ours.grad.stride() == own.grad.stride()
    if between == "maximum":
        # The places of the maxima are saved for the backward, and written by the same loop.
        assert {tuple(read.position for read in call.results) for call in last_is_faster} == {(0, 1)}


@pytest.mark.integration
def test_a_program_whose_loops_cannot_be_timed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []

    def fails(*_args: object, **_how: object) -> bytes:
        started.append(None)
        raise OSError("no more processes")

    monkeypatch.setattr(generated_timing, "_run_worker", fails)
    monkeypatch.setattr(generated_timing, "_KNOWN", {})
    monkeypatch.setattr(generated_timing, "read_stored_seconds", lambda _path: {})
    model, x = Network("maximum").eval(), torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        expected = model(x)
        for _ in range(2):
            torch._dynamo.reset()
            torch.testing.assert_close(solved(model)(x), expected, rtol=1e-4, atol=1e-5)
    assert len(started) == 1
    reasons = [refusal.reason for done in backend.rewritten() for refusal in done.refused]
    assert any("its loop" in reason for reason in reasons)


@pytest.mark.integration
def test_a_program_without_such_loops_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(generated_timing, "_run_worker", lambda *_: started.append(None) or b"")
    monkeypatch.setattr(generated_timing, "_KNOWN", {})
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    with torch.no_grad():
        solved(model)(torch.randn(1, 8, 8, 8))
    assert started == []
