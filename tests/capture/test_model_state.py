"""All that a program reaches is as it was: values, gradients, buffers, modes, generators."""

from __future__ import annotations

import functools
import queue
import random
import subprocess
import sys
import textwrap
from array import array
from collections import Counter, OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import frx_graph
from frx_graph.capture.model import capture_model
from frx_graph.capture.model_state import preserved_state


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.norm(self.linear(x)), 0.5)

    def step(self, x: Tensor) -> Tensor:
        return self(x)


class Stepper:
    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: Tensor) -> Any:
        return self.net(x)


def _closure(net: Stateful) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        net.train()
        out: Tensor = net(x)
        net.eval()
        return out

    return step


@pytest.mark.parametrize(
    "program",
    [
        _closure,
        lambda net: functools.partial(lambda model, x: model(x), net),
        lambda net: net.step,
        Stepper,
    ],
)
@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.integration)])
def test_advice_on_a_function_leaves_what_it_closes_over_alone(
    program: Callable[[Stateful], Callable[..., Any]], inner: str
) -> None:
    net = Stateful().train()
    x = torch.randn(8, 4, requires_grad=True)
    kept = x.grad = torch.ones(8, 4)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    buffers = dict(net.named_buffers())
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)

    report = frx_graph.advise(program(net), (x,), train=True, observe=True, inner=inner, measure=False)

    assert report.advice.observed is not None, report.refusals
    assert torch.equal(torch.rand(3), expected)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(buffer is buffers[name] for name, buffer in net.named_buffers())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert x.grad is kept
    assert torch.equal(kept, torch.ones(8, 4))
    assert net.training
    assert net.norm.training


def test_modes_are_put_back_module_by_module() -> None:
    net = Stateful().eval()
    net.norm.train()
    with preserved_state(net):
        net.train()
    assert (net.training, net.linear.training, net.norm.training) == (False, False, True)


def test_observing_a_step_ends_where_the_callers_own_graph_begins() -> None:
    upstream = nn.Linear(4, 4)
    x = upstream(torch.randn(2, 4))
    advice = frx_graph.advise(nn.Linear(4, 3), (x,), train=True, observe=True, measure=False).advice
    assert advice.observed is not None
    assert upstream.weight.grad is None
    x.sum().backward()
    assert upstream.weight.grad is not None


def test_closed_over_tensors_are_put_back() -> None:
    cache = torch.zeros(3)

    def writes(x: Tensor) -> Tensor:
        return cache.add_(x) * 2

    capture_model(writes, (torch.ones(3),))
    assert torch.equal(cache, torch.zeros(3))


def test_tensors_without_strides_are_left_alone() -> None:
    sparse = torch.eye(3).to_sparse()
    on_meta = torch.empty(3, device="meta", requires_grad=True)
    with preserved_state([sparse, on_meta]):
        pass
    assert on_meta.grad is None


class Remembering(nn.Module):
    """Keeps things in Python, beside a tensor that torch does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.shapes: list[torch.Size] = []
        self.by_name: dict[str, list[int]] = {"seen": []}
        self.kinds: set[str] = set()
        self.total = [torch.zeros(())]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x.shape
        self.shapes.append(x.shape)
        self.by_name["seen"].append(len(self.shapes))
        self.by_name.setdefault("more", [])
        self.kinds.add(str(x.dtype))
        self.total[0].add_(1)
        return x * 2


class Cache:
    """As models of language are given: what it holds grows."""

    def __init__(self) -> None:
        self.layers = [Layer()]


class Layer:
    keys: Tensor | None = None

    def update(self, x: Tensor) -> Tensor:
        self.keys = x if self.keys is None else torch.cat([self.keys, x])
        return self.keys


def test_what_python_keeps_is_put_back() -> None:
    model, cache, numbers = Remembering(), Cache(), deque([1, 2])
    shapes, state = model.shapes, {name: value for name, value in vars(model).items() if not name.startswith("_")}
    with preserved_state(model, [cache], {"numbers": numbers}):
        for _ in range(2):
            cache.layers[0].update(model(torch.ones(3)))
        numbers.popleft()
        assert model.calls == 2
    assert {name: value for name, value in vars(model).items() if not name.startswith("_")} == state
    assert (model.calls, model.shapes, model.by_name, model.kinds) == (0, [], {"seen": []}, set())
    assert model.shapes is shapes
    assert model.total[0] == 0
    assert cache.layers[0].keys is None
    assert numbers == deque([1, 2])


def test_what_a_module_registers_in_its_first_call_goes_with_its_note_of_it() -> None:
    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.seen, self.watched = nn.Linear(3, 3), [], False

        def forward(self, x: Tensor) -> Tensor:
            if not self.watched:
                self.linear.register_forward_hook(lambda _module, _given, result: self.seen.append(result))
                self.add_module("last", nn.Linear(3, 3))
                self.watched = True
            return self.last(self.linear(x))

    model, x = Watched(), torch.randn(2, 3)
    with preserved_state(model, x):
        model(x)
    assert not model.watched
    assert not model.linear._forward_hooks
    assert "last" not in model._modules
    model(x)
    assert len(model.seen) == 1


def test_a_module_that_is_made_in_its_first_call_stays_made() -> None:
    model = nn.LazyLinear(3)
    with preserved_state(model):
        model(torch.ones(2, 4))
    assert model(torch.ones(2, 4)).shape == (2, 3)
    assert model.in_features == 4


def test_what_cannot_be_put_back_keeps_nothing_else_from_it() -> None:
    resized = torch.zeros(2)
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    with pytest.raises(RuntimeError), preserved_state([resized, weight]):
        resized.resize_(5)
    assert weight.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn, torch.bool, torch.complex64])
def test_what_has_not_changed_is_not_written(dtype: torch.dtype) -> None:
    values = torch.tensor([float("nan"), 0.0, 1.0]).to(dtype)
    version = values._version
    with preserved_state([values]):
        pass
    assert values._version == version


@pytest.mark.parametrize("gap", [lambda x: x[..., ::2], lambda x: x[:, 0], lambda x: x.t()[1], lambda x: x[0, 0]])
def test_tensors_with_gaps_are_put_back(gap: Callable[[Tensor], Tensor]) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    before, value = whole.clone(), gap(whole)
    version = value._version
    with preserved_state([value]):
        pass
    assert value._version == version
    with preserved_state([value]):
        value.mul_(2).add_(1)
    assert torch.equal(whole, before)


def test_what_something_that_learns_was_written_into_is_a_leaf_again() -> None:
    weight, value = nn.Parameter(torch.ones(2)), torch.zeros(2)
    with preserved_state([weight, value]):
        value.add_(weight)
        assert value.grad_fn is not None
    assert (value.requires_grad, value.grad_fn, value.tolist()) == (False, None, [0.0, 0.0])
    with preserved_state([weight, value]):
        weight.requires_grad_(False)
    assert weight.requires_grad


class Numbered(list[int]):
    """Tells nobody what it holds."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


@dataclass(slots=True)
class Slotted:
    count: int = 0
    names: list[str] = field(default_factory=list)


class Deep:
    def __init__(self, depth: int) -> None:
        self.count = 0
        self.next = Deep(depth - 1) if depth else None


def _counting() -> Callable[[], int]:
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return count

    return step


COUNT, SEEN = 0, []


def _counts_globally() -> tuple[int, int]:
    global COUNT
    COUNT += 1
    SEEN.append(COUNT)
    return COUNT, len(SEEN)


def _draws(generator: Any, draw: Callable[[Any], float]) -> tuple[Any, Callable[[], Any]]:
    return generator, lambda: draw(generator)


def _does(value: Any, change: Callable[[Any], object], look: Callable[[Any], Any]) -> tuple[Any, Callable[[], Any]]:
    return value, lambda: (change(value), look(value))[1]


@pytest.mark.parametrize(
    ("held", "step"),
    [
        _draws(torch.Generator().manual_seed(1), lambda g: torch.rand(1, generator=g).item()),
        _draws(numpy.random.default_rng(1), lambda g: float(g.random())),
        _draws(numpy.random.RandomState(1), lambda g: float(g.rand())),
        _draws(random.Random(1), lambda g: g.random()),
        _draws(random.Random(1).random, lambda draw: draw()),
        _does(numpy.zeros(3), lambda a: a.__iadd__(1), lambda a: a.tolist()),
        _does(numpy.array([[0]], dtype=object), lambda a: a.__setitem__((0, 0), a[0, 0] + 1), lambda a: a.tolist()),
        _does(bytearray(b"ab"), lambda b: b.append(1), bytes),
        _does(array("i", [1]), lambda a: a.append(1), lambda a: a.tolist()),
        _does(Counter("a"), lambda c: c.update("ab"), dict),
        _does(OrderedDict(a=1, b=2, c=3), lambda d: d.move_to_end(next(iter(d))), list),
        _does(Numbered([1]), lambda n: n.append(1), len),
        _does(Numbered([1]), lambda n: setattr(n, "more", getattr(n, "more", 0) + 1), lambda n: n.more),
        _does(UserDict(a=1), lambda d: d.update({len(d): 1}), len),
        _does(queue.Queue(), lambda q: q.put(1), lambda q: q.qsize()),
        _does(Slotted(), lambda s: setattr(s, "count", s.count + 1), lambda s: s.count),
        _does(Slotted(), lambda s: s.names.append("a"), lambda s: len(s.names)),
        _does(Deep(5), lambda d: setattr(d.next.next.next, "count", d.next.next.next.count + 1),
              lambda d: d.next.next.next.count),
        (step := _counting(), step),
        (_counts_globally, _counts_globally),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
@pytest.mark.parametrize("place", ["argument", "attribute", "hook", "hook of a weight"])
def test_state_of_all_kinds_is_put_back(held: Any, step: Callable[[], Any], place: str) -> None:
    net = nn.Linear(2, 2)
    if place == "attribute":
        net.held = held
    elif place == "hook":
        net.register_forward_pre_hook(lambda *_: print(held))
    elif place == "hook of a weight":
        net.weight.register_hook(lambda _: print(held))
    program = (net, held) if place == "argument" else (net,)
    results = []
    for _ in range(2):
        with preserved_state(*program):
            results.append(step())
    assert results[0] == results[1]
    step()
    assert step() != results[0]


def test_what_methods_and_hooks_of_all_modules_collect_is_put_back() -> None:
    seen: list[int] = []

    class Collecting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(1)
            return x * 2

    model = nn.Sequential(Collecting())
    hook = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(2))
    try:
        with preserved_state(model):
            model(torch.ones(1))
            assert seen == [1, 2, 2]
    finally:
        hook.remove()
    assert seen == []


def test_a_hook_that_takes_itself_out_is_there_again() -> None:
    weight, seen = nn.Parameter(torch.ones(2)), []
    handle = weight.register_hook(lambda _: (seen.append(1), handle.remove())[0])
    with preserved_state([weight]):
        weight.sum().backward()
        assert seen == [1]
    assert seen == []
    weight.sum().backward()
    assert seen == [1]


def test_what_is_registered_in_the_first_call_goes_again() -> None:
    class Registering(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "seen"):
                self.register_buffer("seen", torch.zeros(1))
                self.register_parameter("scale", nn.Parameter(torch.ones(1)))
            self.seen += 1
            return x * self.seen * self.scale

    model = Registering()
    with preserved_state(model):
        assert model(torch.ones(1)).item() == 1
    assert model.state_dict() == {}
    assert model(torch.ones(1)).item() == 1


FREED = textwrap.dedent(
    """
    import torch
    from torch import nn
    from frx_graph.capture.model_state import preserved_state

    model = nn.BatchNorm1d(2)
    for tensor in (model.weight, model.running_mean):
        kept = tensor.detach().clone()
        tensor.untyped_storage().resize_(0)
        with preserved_state(model):
            pass
        assert tensor.untyped_storage().nbytes() == 0
        tensor.untyped_storage().resize_(8)
        tensor.detach().copy_(kept)
    weight = model.weight.tolist()
    with preserved_state(model):
        model.weight.untyped_storage().resize_(0)
    assert model.weight.tolist() == weight
    print("done")
    """
)


def test_freed_memory_is_not_read() -> None:
    told = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, timeout=300)
    assert told.stdout.splitlines() == ["done"], told.stderr
