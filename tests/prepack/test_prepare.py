"""What `prepare` stores, what it leaves with a reason, and what it refuses with an error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frx_graph
from frx_graph.compiler import operator_times
from frx_graph.errors import EvidenceError, PrepareError, TargetError

IMAGE = torch.ones(1, 8, 6, 6)


def reasons(monkeypatch: pytest.MonkeyPatch, **given: object) -> dict[str, str]:
    """By what was left, with these functions of `anchor_times` in place of those that measure."""
    for name, function in given.items():
        monkeypatch.setattr(operator_times, name, function)
    prepared = frx_graph.prepare(nn.Sequential(nn.Conv2d(8, 8, 3)), (IMAGE,))
    assert prepared.converted == {}
    return {refusal.subject: refusal.reason for refusal in prepared.refused}


def test_unknown_bandwidth_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_device: str) -> None:
        raise EvidenceError("it cannot be measured")

    found = reasons(monkeypatch, get_device_profile=unknown)
    assert list(found) == ["preconvert_weights"]
    assert "bandwidth is not known" in found["preconvert_weights"]


def test_untimed_convolution_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reasons(monkeypatch, measure_bandwidth=lambda _facts: 1e10, time_anchors=lambda *_args, **_how: {})
    assert list(found) == ["model.0.weight"]
    assert "could not be measured" in found["model.0.weight"]


def test_weight_already_in_the_best_layout_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain_is_faster(subject, *, prepared):
        return {anchor.op.node: {(0, 1, 2, 3): 1.0, (0, 2, 3, 1): 2.0} for anchor in subject.anchors}

    assert reasons(monkeypatch, measure_bandwidth=lambda _facts: 1e10, time_anchors=plain_is_faster) == {}


def test_a_function_has_no_weights() -> None:
    prepared = frx_graph.prepare(torch.relu, (IMAGE,))
    assert [refusal.reason for refusal in prepared.refused] == ["a function has no parameters: give the module itself"]


class Network(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Conv2d(8, 8, 1))


@pytest.mark.usefixtures("channels_last_is_fastest")
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_weights_are_stored_as_torch_converts_a_module(mode: Callable[[], Any], train: bool) -> None:
    model = Network().train(train)
    model(IMAGE).square().sum().backward()
    twin = copy.deepcopy(model)
    for ours, own in zip(model.parameters(), twin.parameters(), strict=True):
        own.grad = ours.grad.clone()
    objects = dict(model.named_parameters())
    with mode():
        prepared = frx_graph.prepare(model, (IMAGE,), train=train, inner="eager")
    assert prepared.converted == {"0.weight": (0, 2, 3, 1), "3.weight": (0, 2, 3, 1)}
    twin.to(memory_format=torch.channels_last)
    for (name, ours), own in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert ours is objects[name]
        assert torch.equal(ours, own)
        assert torch.equal(ours.grad, own.grad)
        if name != "4.weight":
            # Of the 1x1 convolution both orders are one memory: it stays.
            assert (ours.stride(), ours.grad.stride()) == (own.stride(), own.grad.stride())
    assert not any(parameter.is_inference() for parameter in model.parameters())
    torch.testing.assert_close(model.eval()(IMAGE), twin.eval()(IMAGE))


@pytest.mark.usefixtures("channels_last_is_fastest")
def test_volumes_are_stored_in_their_own_channels_last() -> None:
    model = nn.Conv3d(8, 8, 3)
    assert frx_graph.prepare(model, (torch.ones(1, 8, 5, 6, 6),), inner="eager").converted == {
        "weight": (0, 2, 3, 4, 1)
    }
    assert model.weight.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.usefixtures("channels_last_is_fastest")
def test_an_image_of_one_row_has_its_weight_in_channels_last() -> None:
    model = nn.Conv2d(8, 8, 3, padding=1)
    assert frx_graph.prepare(model, (torch.ones(1, 8, 1, 6),), inner="eager").converted == {"weight": (0, 2, 3, 1)}
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    assert frx_graph.prepare(model, (torch.ones(1, 8, 1, 6),), inner="eager").converted == {}


def test_a_weight_in_channels_last_that_is_faster_plain_is_stored_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain_is_faster(subject: Any, *, prepared: bool) -> dict[str, Any]:
        return {anchor.op.node: {(0, 1, 2, 3): 1.0, (0, 2, 3, 1): 2.0} for anchor in subject.anchors}

    monkeypatch.setattr(operator_times, "measure_bandwidth", lambda _facts: 1e10)
    monkeypatch.setattr(operator_times, "time_anchors", plain_is_faster)
    model = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
    assert frx_graph.prepare(model, (IMAGE,), inner="eager").converted == {"weight": (0, 1, 2, 3)}
    assert model.weight.is_contiguous()


@pytest.mark.usefixtures("channels_last_is_fastest")
def test_a_program_in_several_graphs_is_prepared_too() -> None:
    class Broken(Network):
        def forward(self, x: Tensor) -> Tensor:
            y = self[0](x)
            torch._dynamo.graph_break()
            return self[3](y)

    assert set(frx_graph.prepare(Broken(), (IMAGE,), inner="eager").converted) == {"0.weight", "3.weight"}


class ReadTwice(nn.Module):
    """One weight in a convolution and in a product, in one graph or in two."""

    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.convolution, self.broken = nn.Conv2d(8, 8, 3), broken

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x).mean((1, 2, 3))
        if self.broken:
            torch._dynamo.graph_break()
            y = y + self.convolution(x).mean()
        return y + self.convolution.weight.flatten(1).sum()


@pytest.mark.usefixtures("channels_last_is_fastest")
@pytest.mark.parametrize("broken", [False, True])
def test_a_weight_that_something_else_reads_stays(broken: bool) -> None:
    model = ReadTwice(broken)
    prepared = frx_graph.prepare(model, (IMAGE,), inner="eager")
    assert prepared.converted == {}
    assert [refusal.reason for refusal in prepared.refused] == ["an operator other than a convolution reads it"]
    assert model.convolution.weight.is_contiguous()


@pytest.mark.usefixtures("channels_last_is_fastest")
def test_a_weight_in_front_of_an_operator_that_sees_strides_stays() -> None:
    class Strided(Network):
        def forward(self, x: Tensor) -> Tensor:
            return self[0](x).as_strided((4,), (1,))

    model = Strided()
    (refusal,) = frx_graph.prepare(model, (IMAGE,), inner="eager").refused
    assert "as_strided" in refusal.reason
    assert model[0].weight.is_contiguous()


def with_optimizer(model: nn.Module, make: Callable[..., torch.optim.Optimizer], **how: Any) -> object:
    optimizer = make(model.parameters(), **how)
    model(IMAGE).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def wrap(model: nn.Module) -> None:
    class Wrapped(nn.Parameter):
        pass

    model[0].weight = Wrapped(model[0].weight.detach().clone())


SHARED, STATE = "something else uses its memory", "an optimizer keeps state for it"
REFUSED: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "its data is held": (lambda model: model[0].weight.data, SHARED),
    "a state_dict": (lambda model: model.state_dict(), SHARED),
    "tied by memory": (
        lambda model: setattr(model[3].weight, "data", model[0].weight.data.view(8, 16, 3, 3)),
        SHARED,
    ),
    "in other processes": (lambda model: model.share_memory(), SHARED),
    "a part of a tensor": (lambda model: setattr(model[0].weight, "data", torch.randn(17, 8, 3, 3)[1:]), SHARED),
    "a part of all gradients": (
        lambda model: setattr(model[0].weight, "grad", torch.zeros(2, 16, 8, 3, 3)[0]),
        SHARED,
    ),
    "Adam, fused": (lambda model: with_optimizer(model, torch.optim.Adam, fused=True), STATE),
    "SGD with momentum": (lambda model: with_optimizer(model, torch.optim.SGD, lr=0.1, momentum=0.9), STATE),
    "a subclass": (wrap, "a tensor of another kind"),
}


@pytest.mark.usefixtures("channels_last_is_fastest")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_follow_a_weight_is_an_error_and_nothing_is_changed(case: str) -> None:
    happens, reason = REFUSED[case]
    model = Network()
    kept = happens(model)
    before = [(parameter.data_ptr(), parameter.stride()) for parameter in model.parameters()]
    with pytest.raises(PrepareError, match=r"^[03].weight cannot be stored") as caught:
        frx_graph.prepare(model, (IMAGE,), inner="eager")
    assert reason in caught.value.message
    assert caught.value.hint
    assert [(parameter.data_ptr(), parameter.stride()) for parameter in model.parameters()] == before
    del kept


@pytest.mark.usefixtures("channels_last_is_fastest")
def test_optimizer_of_another_model_is_ignored() -> None:
    kept = with_optimizer(Network(), torch.optim.Adam)
    assert frx_graph.prepare(Network(), (IMAGE,), inner="eager").converted
    del kept


@pytest.mark.usefixtures("channels_last_is_fastest")
def test_weights_whose_gradients_may_be_reduced_between_processes_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    model = Network()
    with pytest.raises(PrepareError, match="processes may reduce"):
        frx_graph.prepare(model, (IMAGE,), inner="eager")
    assert model[0].weight.is_contiguous()
    assert frx_graph.prepare(nn.Linear(6, 6), (IMAGE,), inner="eager").converted == {}


def test_lazy_parameters_are_an_error() -> None:
    with pytest.raises(PrepareError, match="call the model once"):
        frx_graph.prepare(nn.LazyConv2d(8, 3), (IMAGE,))


def test_a_model_that_raises_is_an_error() -> None:
    with pytest.raises(TargetError, match="the model raised"):
        frx_graph.prepare(nn.Conv2d(3, 3, 3), (IMAGE,), inner="eager")


@pytest.mark.usefixtures("channels_last_is_fastest")
def test_buffers_and_random_numbers_are_as_before() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Dropout()).train()
    torch.manual_seed(0)
    expected, before = torch.rand(3), {name: buffer.clone() for name, buffer in model.named_buffers()}
    torch.manual_seed(0)
    assert frx_graph.prepare(model, (IMAGE,), train=True, inner="eager").converted
    assert torch.equal(torch.rand(3), expected)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_warning_names_what_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_is_faster(subject, *, prepared):
        return {anchor.op.node: {(0, 1, 2, 3): 2.0, (0, 2, 3, 1): 1.0} for anchor in subject.anchors}

    monkeypatch.setattr(operator_times, "measure_bandwidth", lambda _facts: 1e10)
    monkeypatch.setattr(operator_times, "time_anchors", last_is_faster)
    with pytest.warns(RuntimeWarning, match=r"frx_graph\.prepare has stored weights .*\(0\.weight\).*use `reshape`"):
        prepared = frx_graph.prepare(nn.Sequential(nn.Conv2d(8, 8, 3)), (IMAGE,))
    assert list(prepared.converted) == ["0.weight"]
