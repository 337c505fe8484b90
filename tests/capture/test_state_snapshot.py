"""Values, gradients, buffers, modes and generators are restored after a program has run; other state is not."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import frx_graph
from frx_graph.capture.model import capture_model
from frx_graph.capture.state_snapshot import StateSnapshot, preserve_state


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
    with preserve_state(net):
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


def test_tensors_without_strided_memory_are_left_alone() -> None:
    sparse = torch.eye(3).to_sparse()
    on_meta = torch.empty(3, device="meta", requires_grad=True)
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with preserve_state([sparse, on_meta, jagged]):
        pass
    assert on_meta.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64])
def test_values_of_every_type_are_restored_without_raising_the_version(dtype: torch.dtype) -> None:
    values = torch.tensor([float("nan"), 0.0, 1.0]).to(dtype)
    before, version = values.clone(), values._version
    with preserve_state([values]):
        values.copy_(torch.ones(3).to(dtype))
    assert torch.equal(values.view(torch.uint8), before.view(torch.uint8))
    assert values._version == version


def test_a_tensor_that_cannot_be_written_to_is_not_written_to() -> None:
    expanded = torch.tensor([float("nan")]).expand(3)
    with preserve_state([expanded]):
        pass
    assert expanded.isnan().all()


@pytest.mark.parametrize("gap", [lambda x: x[..., ::2], lambda x: x[:, 0], lambda x: x.t()[1], lambda x: x[0, 0]])
def test_tensors_with_gaps_are_restored(gap: Callable[[Tensor], Tensor]) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    before, value = whole.clone(), gap(whole)
    with preserve_state([value]):
        value.mul_(2).add_(1)
    assert torch.equal(whole, before)


def test_parameters_of_a_raising_program_are_restored_in_place() -> None:
    net = nn.Linear(2, 2)
    weight, memory, before = net.weight, net.weight.data_ptr(), net.weight.detach().clone()
    with pytest.raises(ZeroDivisionError), preserve_state(net):
        net.weight.requires_grad_(False).fill_(7)
        net.weight = nn.Parameter(torch.zeros(2, 2))
        raise ZeroDivisionError
    assert net.weight is weight
    assert weight.data_ptr() == memory
    assert weight.requires_grad
    assert torch.equal(weight, before)


def test_gradients_are_none_inside_and_the_same_tensors_afterwards() -> None:
    net, x = nn.Linear(2, 1), torch.ones(1, 2, requires_grad=True)
    kept = net.weight.grad = torch.ones(1, 2)
    with preserve_state(net, x) as snapshot:
        assert net.weight.grad is None
        net(x).sum().backward()
        assert x.grad is not None
        snapshot.clear_gradients()
        assert x.grad is None
        net(x).sum().backward()
    assert net.weight.grad is kept
    assert kept.tolist() == [[1, 1]]
    assert (net.bias.grad, x.grad) == (None, None)


def test_batch_norm_statistics_are_restored_without_a_version_change() -> None:
    norm = nn.BatchNorm1d(2)
    mean, before = norm.running_mean, norm.running_mean.clone()
    with preserve_state(norm):
        norm(torch.randn(4, 2))
        assert not torch.equal(mean, before)
    assert norm.running_mean is mean
    assert torch.equal(mean, before)
    assert norm.num_batches_tracked == 0


def test_buffers_are_restored_persistent_or_not_and_replaced_or_written_to() -> None:
    net = nn.Module()
    net.register_buffer("replaced", torch.zeros(1))
    net.register_buffer("unsaved", torch.zeros(1), persistent=False)
    buffers = dict(net.named_buffers())
    with preserve_state(net):
        net.replaced = net.replaced + 1
        net.unsaved += 1
    assert all(buffer is buffers[name] for name, buffer in net.named_buffers())
    assert [net.replaced.item(), net.unsaved.item()] == [0, 0]
    assert list(net.state_dict()) == ["replaced"]


def test_a_buffer_that_something_with_a_gradient_was_written_into_is_a_leaf_again() -> None:
    weight, value = nn.Parameter(torch.ones(2)), torch.zeros(2)
    with preserve_state([weight, value]):
        value.add_(weight)
        assert value.grad_fn is not None
    assert (value.requires_grad, value.grad_fn, value.tolist()) == (False, None, [0.0, 0.0])


def test_tied_parameters_stay_tied() -> None:
    embedding, head = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
    head.weight = embedding.weight
    net, before = nn.Sequential(embedding, head), embedding.weight.detach().clone()
    with preserve_state(net) as snapshot, torch.no_grad():
        assert snapshot.parameters == (embedding.weight,)
        head.weight.zero_()
    assert head.weight is embedding.weight
    assert torch.equal(head.weight, before)


def test_a_backward_that_waits_works_after_its_input_was_written_to() -> None:
    weight, x = nn.Parameter(torch.ones(2)), torch.full((2,), 3.0)
    waiting = (weight * x).sum()
    with preserve_state([x]):
        x.mul_(2)
    waiting.backward()
    assert weight.grad.tolist() == [3, 3]


def test_generators_continue_where_they_were() -> None:
    def draw() -> tuple[float, float, float]:
        return torch.rand(1).item(), random.random(), float(numpy.random.rand())

    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    with preserve_state():
        inside = draw()
    assert draw() == inside
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_state_is_restored() -> None:
    norm = nn.BatchNorm1d(2, device="cuda")
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    torch.cuda.manual_seed(3)
    with preserve_state(norm):
        inside = torch.rand(1, device="cuda")
        norm(torch.randn(4, 2, device="cuda"))
    assert torch.equal(torch.rand(1, device="cuda"), inside)
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm.state_dict().items())


def test_a_lazy_module_stays_materialized() -> None:
    model = nn.LazyLinear(3)
    with preserve_state(model):
        model(torch.ones(2, 4))
    assert model(torch.ones(2, 4)).shape == (2, 3)


def test_a_scripted_module_is_restored() -> None:
    model = torch.jit.script(nn.BatchNorm1d(2))
    with preserve_state(model):
        model(torch.randn(4, 2))
        model.eval()
    assert model.num_batches_tracked == 0
    assert model.training


def test_python_state_is_not_restored() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if not hasattr(self, "seen"):
                self.register_buffer("seen", torch.zeros(1))
            return x

    model = Counting()
    with preserve_state(model):
        model(torch.ones(1))
    assert model.calls == 1
    assert list(model.state_dict()) == ["seen"]


GLOBAL_NET = nn.Linear(2, 2)


def _uses_a_global(x: Tensor) -> Tensor:
    return GLOBAL_NET(x)


def _calls_another(x: Tensor) -> Tensor:
    return _uses_a_global(x)


def _closes_over(net: nn.Module) -> Callable[..., Any]:
    def inner(x: Tensor) -> Any:
        return net(x)

    return lambda x: inner(x)


def _has_a_default(net: nn.Module) -> Callable[..., Any]:
    def call(x: Tensor, *, used: nn.Module = net) -> Any:
        return used(x)

    return call


class Trainer:
    def __init__(self, net: nn.Module) -> None:
        self.parts = {"net": [net]}

    def step(self, x: Tensor) -> Any:
        return self.parts["net"][0](x)

    def __call__(self, x: Tensor) -> Any:
        return self.step(x)


@pytest.mark.parametrize(
    "program",
    [
        lambda net: net,
        lambda net: {"nets": [net]},
        _closes_over,
        _has_a_default,
        lambda net: functools.partial(torch.func.functional_call, net),
        lambda net: functools.partial(lambda model, x: model(x), model=net),
        lambda net: net.forward,
        lambda net: Trainer(net),
        lambda net: Trainer(net).step,
        lambda net: torch.no_grad()(_closes_over(net)),
        lambda net: torch.compile(_closes_over(net), backend="eager"),
        lambda net: torch.compile(net, backend="eager"),
    ],
)
def test_a_program_reaches_its_parameters(program: Callable[[nn.Module], object]) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert set(StateSnapshot(program(net)).parameters) == set(net.parameters())


@pytest.mark.parametrize("program", [_uses_a_global, _calls_another, lambda x: _calls_another(x)])
def test_globals_that_a_function_names_are_reached(program: Callable[..., Any]) -> None:
    assert set(StateSnapshot(program).parameters) == set(GLOBAL_NET.parameters())


def test_a_variable_that_is_not_assigned_yet_is_passed_over() -> None:
    def program() -> nn.Module:
        return net

    assert StateSnapshot(program).parameters == ()
    net = nn.Linear(2, 2)
    assert set(StateSnapshot(program).parameters) == set(net.parameters())


def test_a_single_element_with_a_stride() -> None:
    x = torch.zeros(4)[::4]
    with preserve_state(x):
        x.fill_(1)
    assert x.item() == 0
    assert x.stride() == (4,)
