"""A program is captured as one graph, or not at all, and nothing of it runs."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from frx_graph.capture.whole_program import WholeProgram, whole_program
from frx_graph.errors import CaptureError

IMAGE = torch.randn(2, 3, 8, 8)


class Program(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3)
        self.function = function
        self.calls: list[int] = []
        self.count = 0

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def captured(model: nn.Module, *args: Any, gradients: bool = True) -> WholeProgram:
    return whole_program(model, args, {}, gradients=gradients, as_eager=True)


def counted(self: Program, x: Tensor) -> Tensor:
    self.calls.append(1)
    self.count += 1
    return self.layer(x)


def hooked(self: Program, x: Tensor) -> Tensor:
    if not self.count:
        self.layer.weight.register_hook(lambda gradient: gradient * 0.5)
        self.count = 1
    return self.layer(x)


def marked(self: Program, x: Tensor) -> Tensor:
    if not hasattr(x, "normalised"):
        x.sub_(x.mean())
        x.normalised = True  # type: ignore[attr-defined]
    return self.layer(x)


def reshaped(self: Program, x: Tensor) -> Tensor:
    return self.layer(x.unsqueeze_(0).squeeze_(0))


def swapped(self: Program, x: Tensor) -> Tensor:
    self.layer.weight.data = self.layer.weight.data * 2
    return self.layer(x)


def drawn(self: Program, x: Tensor) -> Tensor:
    return self.layer(x) * random.random() + torch.rand(1)


def trained(self: Program, x: Tensor) -> Tensor:
    self.layer(x).sum().backward()
    self.optimizer.step()
    return self.layer(x)


@pytest.mark.parametrize("function", [counted, hooked, marked, reshaped, swapped, drawn, trained])
def test_nothing_runs(function: Callable[..., Any]) -> None:
    model, image = Program(function), IMAGE.clone()
    model.optimizer = torch.optim.Adam(model.parameters())  # type: ignore[assignment]
    held = {name: (value.data_ptr(), value._version) for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate()
    try:
        captured(model, image)
    except CaptureError as error:
        assert "one graph" in error.message
    assert (model.calls, model.count, len(model.optimizer.state)) == ([], 0, 0)
    assert {name: (value.data_ptr(), value._version) for name, value in model.state_dict().items()} == held
    assert (image._version, image.shape, hasattr(image, "normalised")) == (0, IMAGE.shape, False)
    assert not model.layer.weight._backward_hooks
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_hooks_of_modules_are_part_of_it() -> None:
    model = Program(lambda self, x: self.layer(x))
    model.register_forward_hook(lambda _module, _given, result: result.relu())
    assert any("relu" in str(node.target) for node in captured(model, IMAGE).dynamo.graph.nodes)


@torch._dynamo.disable
def unseen(x: Tensor) -> Tensor:
    return x + 1


@torch._dynamo.allow_in_graph
def foreign(x: Tensor) -> Tensor:
    return x + 1


@torch._dynamo.nonstrict_trace
def untraced(x: Tensor) -> Tensor:
    return x + 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda self, x: untraced(self.layer(x)), "a function that Dynamo does not trace"),
        (lambda self, x: unseen(self.layer(x)), "not captured in one graph"),
        (lambda self, x: foreign(self.layer(x)), "foreign, into which nobody can see"),
        (lambda self, x: self.layer(x) if x.sum() > 0 else x, "not captured in one graph"),
        (lambda _self, _x: 3, "not captured in one graph"),
        (lambda self, x: self.layer(x[0, 0]), "not captured in one graph"),
    ],
)
def test_what_is_not_captured_whole_is_told(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        captured(Program(function), IMAGE)


def test_what_computes_nothing_does_not_run() -> None:
    def queued(self: Program, x: Tensor) -> Tensor:
        self.calls.append(1)
        self.count += 1
        return x

    model = Program(queued)
    with pytest.raises(CaptureError, match="not captured in one graph"):
        captured(model, IMAGE)
    assert (model.calls, model.count) == ([], 0)


def test_what_is_not_compiled_does_not_run() -> None:
    model = Program(counted)
    with torch.compiler.set_stance("force_eager"), pytest.raises(CaptureError, match="not compiled"):
        captured(model, IMAGE)
    assert model.calls == []


def test_the_stance_against_recompilations_is_the_programs() -> None:
    model = Program(counted)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert captured(model, IMAGE).inputs


OF_PLAIN: list[str] = []
OF_CHANNELS_LAST: list[str] = []


def noted_strides(self: Program, x: Tensor) -> Tensor:
    if x.is_contiguous():
        self.plain = True
    else:
        self.channels_last = True
    return self.layer(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: (self.layer(x), x.stride()),
        lambda self, x: (self.layer(x), OF_PLAIN if x.is_contiguous() else OF_CHANNELS_LAST),
        noted_strides,
    ],
)
def test_code_around_the_graph_tells_programs_apart(function: Callable[..., Any]) -> None:
    model = Program(function)
    plain, again = captured(model, IMAGE), captured(model, IMAGE.clone())
    other = captured(model, IMAGE.to(memory_format=torch.channels_last))
    assert plain.code == again.code
    assert plain.code != other.code


def test_captures_do_not_use_up_the_limit_of_recompilations() -> None:
    model = Program(counted)
    for _ in range(torch._dynamo.config.recompile_limit + 2):
        captured(model, IMAGE)


def test_what_a_cache_of_parametrizations_holds_is_the_programs() -> None:
    model = Program(lambda self, x: self.layer(x))
    parametrizations.weight_norm(model.layer)
    with parametrize.cached():
        captured(model, IMAGE)
        assert not parametrize._cache
