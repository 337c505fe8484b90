"""What `prepare` left as it was comes with the reason."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch
from torch import nn

import frx_graph
from frx_graph.compiler import operator_times
from frx_graph.errors import EvidenceError

IMAGE = torch.ones(1, 8, 6, 6)


def reasons(monkeypatch: pytest.MonkeyPatch, **given: object) -> dict[str, str]:
    """By what was left, with these functions of `anchor_times` in place of those that measure."""
    for name, function in given.items():
        monkeypatch.setattr(operator_times, name, function)
    prepared = frx_graph.prepare(nn.Sequential(nn.Conv2d(8, 8, 3)), (IMAGE,))
    assert prepared.converted == {}
    return {refusal.subject: refusal.reason for refusal in prepared.refused}


def test_an_unknown_bandwidth_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_device: str) -> None:
        raise EvidenceError("it cannot be measured")

    found = reasons(monkeypatch, device_profile=unknown)
    assert list(found) == ["preconvert_weights"]
    assert "bandwidth is not known" in found["preconvert_weights"]


def test_a_convolution_that_was_not_timed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reasons(monkeypatch, bandwidth_of=lambda _facts: 1e10, anchor_seconds=lambda *_args, **_how: {})
    assert list(found) == ["model.0.weight"]
    assert "could not be measured" in found["model.0.weight"]


def test_of_a_weight_that_lies_best_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain_is_faster(subject, *, prepared):
        return {anchor.op.node: {(0, 1, 2, 3): 1.0, (0, 2, 3, 1): 2.0} for anchor in subject.anchors}

    assert reasons(monkeypatch, bandwidth_of=lambda _facts: 1e10, anchor_seconds=plain_is_faster) == {}


def test_a_function_has_no_weights() -> None:
    prepared = frx_graph.prepare(torch.relu, (IMAGE,))
    assert [refusal.reason for refusal in prepared.refused] == ["a function has no parameters: give the module itself"]


class Scaled(nn.Module):
    """Asks whatever it is given for a number in each call."""

    def __init__(self, number: Callable[[], float]) -> None:
        super().__init__()
        self.convolution, self.number = nn.Conv2d(8, 8, 3), number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x) * self.number()


def test_nothing_of_a_program_runs() -> None:
    numbers = iter([1.0, 2.0, 3.0, 4.0])
    frx_graph.prepare(Scaled(numbers.__next__), (IMAGE,), inner="eager")
    assert next(numbers) == 1.0


def test_what_is_not_one_graph_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    model[0].register_forward_hook(torch._dynamo.disable(lambda _module, _given, result: result))
    compiled = frx_graph.compile(model, options={"plan": "all", "inner": "eager"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(IMAGE), model(IMAGE))
    told = [refusal for graph in frx_graph.backend.rewritten() for refusal in graph.refused]
    assert any("not captured in one graph" in r.reason for r in told if r.subject == "preconvert_weights")


@pytest.mark.parametrize("train", [False, True])
def test_hooks_collect_what_one_call_gives_them(train: bool) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).train(train)
    features: list[torch.Tensor] = []
    gradients: list[torch.Tensor] = []
    model[1].register_forward_hook(lambda _module, _given, result: features.append(result.detach()))
    model[0].weight.register_hook(gradients.append)
    compiled = frx_graph.compile(model, options={"plan": "all", "inner": "eager"})
    with torch.set_grad_enabled(train):
        result = compiled(IMAGE)
        if train:
            result.sum().backward()
    assert (len(features), len(gradients)) == (1, int(train))


OFFLOADED = textwrap.dedent(
    """
    import torch, frx_graph
    from torch import nn

    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    kept = {parameter: parameter.detach().clone() for parameter in model.parameters()}

    @torch._dynamo.disable
    def load(*_):
        for parameter, values in kept.items():
            parameter.untyped_storage().resize_(values.nbytes)
            parameter.data.copy_(values)

    @torch._dynamo.disable
    def free(*_):
        for parameter in kept:
            parameter.untyped_storage().resize_(0)

    model.register_forward_pre_hook(load)
    model.register_forward_hook(free)
    image = torch.randn(1, 8, 6, 6)
    with torch.no_grad():
        wanted = model(image)
        compiled = frx_graph.compile(model, options={"plan": "all", "inner": "eager"})
        for given in (image, image, image.contiguous(memory_format=torch.channels_last)):
            torch.testing.assert_close(compiled(given), wanted)
    print([refusal.reason for graph in frx_graph.backend.rewritten() for refusal in graph.refused])
    """
)


def test_weights_whose_memory_is_freed_between_calls_stay_where_they_are() -> None:
    told = subprocess.run([sys.executable, "-c", OFFLOADED], capture_output=True, text=True, timeout=300)
    assert "not captured in one graph" in told.stdout, told.stderr
