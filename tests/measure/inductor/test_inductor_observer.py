import inspect
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config
from torch.nn import functional

from frx_graph.capture.captured_graph import Phase
from frx_graph.measure.inductor.inductor_observer import observe_inductor
from frx_graph.measure.operators.operator_measurement import OUTSIDE, ObservedCopy

FLOAT = 4

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


def observe(module: nn.Module, *args: Tensor, train: bool = False) -> tuple[ObservedCopy, ...]:
    def step(compiled: Callable[..., Tensor]) -> None:
        with torch.set_grad_enabled(train):
            result = compiled(*args)
        if train:
            result.backward(torch.ones_like(result))

    return observe_inductor(module, step)


def line_of(function: Callable[..., object], text: str) -> int:
    lines, start = inspect.getsourcelines(function)
    return next(start + offset for offset, line in enumerate(lines) if text in line)


def summary(copies: Iterable[ObservedCopy]) -> list[tuple[str, str, str, int]]:
    return sorted((c.site.module_path, c.kind, c.role, c.bytes) for c in copies)


class TwoConvolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 64, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x))
        return self.second(x)


WEIGHTS = {"model.first": 2 * FLOAT * 32 * 3 * 9, "model.second": 2 * FLOAT * 64 * 32 * 9}
IMAGE = {"model.first": 2 * FLOAT * 2 * 3 * 64, "model.second": 2 * FLOAT * 2 * 64 * 64}


@pytest.fixture(scope="module")
def convolutions() -> tuple[ObservedCopy, ...]:
    return observe(TwoConvolutions(), torch.randn(2, 3, 8, 8))


def test_plain_convolution_weights_are_converted_on_every_call(convolutions: tuple[ObservedCopy, ...]) -> None:
    generated = [c for c in convolutions if c.kind != "reorder"]
    assert summary(generated) == [
        ("model.first", "operator", "input", IMAGE["model.first"]),
        ("model.first", "operator", "weight", WEIGHTS["model.first"]),
        ("model.second", "operator", "output", IMAGE["model.second"]),
        ("model.second", "operator", "weight", WEIGHTS["model.second"]),
    ]
    assert {c.operator for c in generated} == {"aten.convolution"}


def test_library_calls_are_recorded_at_run_time(convolutions: tuple[ObservedCopy, ...]) -> None:
    in_library = [c for c in convolutions if c.kind == "reorder"]
    assert summary(in_library) == [
        ("model.first", "reorder", "weight", WEIGHTS["model.first"]),
        ("model.second", "reorder", "weight", WEIGHTS["model.second"]),
    ]


def test_copies_are_at_the_line_of_the_call(convolutions: tuple[ObservedCopy, ...]) -> None:
    lines = {(c.site.module_path, c.site.file, c.site.line) for c in convolutions}
    assert lines == {
        ("model.first", __file__, line_of(TwoConvolutions.forward, "self.first")),
        ("model.second", __file__, line_of(TwoConvolutions.forward, "self.second")),
    }


def test_a_second_observation_is_not_served_from_a_cache(convolutions: tuple[ObservedCopy, ...]) -> None:
    torch._dynamo.reset()
    again = observe(TwoConvolutions(), torch.randn(2, 3, 8, 8))
    assert summary(again) == summary(convolutions)


def test_channels_last_weights_and_input_leave_only_what_the_library_and_the_output_need() -> None:
    model = TwoConvolutions().to(memory_format=torch.channels_last)
    copies = observe(model, torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last))
    assert {c.kind for c in copies} == {"reorder"}
    assert {c.role for c in copies} == {"weight"}


def test_layout_optimization_can_be_switched_off() -> None:
    with inductor_config.patch(layout_optimization=False):
        copies = observe(TwoConvolutions(), torch.randn(2, 3, 8, 8))
    assert {c.kind for c in copies} == {"reorder"}
    assert any(c.role == "output" for c in copies)


@pytest.mark.integration
def test_backward_kernels_belong_to_the_forward_call_site() -> None:
    copies = observe(TwoConvolutions(), torch.randn(2, 3, 8, 8), train=True)
    backward = [c for c in copies if c.phase is Phase.BACKWARD and c.operator != OUTSIDE]
    assert {c.operator for c in backward} == {"aten.convolution_backward"}
    incoming = [c for c in backward if c.kind != "reorder" and c.role == "input"]
    assert summary(incoming) == [("model.second", "operator", "input", IMAGE["model.second"])]
    assert {c.site.line for c in backward} == {
        line_of(TwoConvolutions.forward, "self.first"),
        line_of(TwoConvolutions.forward, "self.second"),
    }


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(64, 3 * 64)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.project(x).chunk(3, -1)
        query, key, value = (
            part.view(batch, length, 4, 16).transpose(1, 2).contiguous()
            for part in parts
        )  # fmt: skip
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return mixed.transpose(1, 2).contiguous().view(batch, length, width)


@pytest.mark.integration
def test_contiguous_before_attention_is_a_kernel_each() -> None:
    copies = observe(Attention(), torch.randn(2, 32, 64))
    traffic = 2 * FLOAT * 2 * 32 * 64
    assert [(c.operator, c.kind, c.bytes) for c in copies] == [("aten.clone", "explicit", traffic)] * 4
    lines = sorted(c.site.line for c in copies)
    inside = line_of(Attention.forward, "part.view")
    assert lines == [inside, inside, inside, line_of(Attention.forward, "mixed.transpose")]


class Fused(nn.Module):
    """A transposed copy of something computed: stored the other way round by the kernel that computes it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x).transpose(0, 1).contiguous()


def test_a_copy_fused_into_its_producer_is_none() -> None:
    copies = observe(Fused(), torch.randn(32, 48))
    assert copies == ()


class Reshaped(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.transpose(0, 1).reshape(-1) @ y


def test_a_reshape_that_copies() -> None:
    (copy,) = observe(Reshaped(), torch.randn(32, 48), torch.randn(32 * 48, 2))
    assert (copy.kind, copy.bytes) == ("reshape", 2 * FLOAT * 32 * 48)
    assert copy.site.line == line_of(Reshaped.forward, "reshape")


class Loop(nn.Module):
    """A break inside a loop: Dynamo runs this frame as Python and compiles what it calls."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.once(x)
            torch._dynamo.graph_break()
        return x.t().contiguous()

    def once(self, x: Tensor) -> Tensor:
        return x.t().contiguous()


def test_a_graph_counts_each_time_it_runs_and_copies_between_graphs_are_seen() -> None:
    copies = observe(Loop(), torch.randn(8, 8))
    assert [(c.operator, c.bytes) for c in copies] == [
        *[("aten.clone", 2 * FLOAT * 64)] * 3,
        (OUTSIDE, 2 * FLOAT * 64),
    ]


class Products(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sum(x.t() @ x, 0)


def test_products_of_transposed_tensors_copy_nothing() -> None:
    copies = observe(Products(), torch.randn(16, 24))
    assert copies == ()
