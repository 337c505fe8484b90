import random
from collections import Counter
from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from frx_graph.capture.captured_graph import Phase
from frx_graph.errors import EvidenceError
from frx_graph.measure.operators.copy_recorder import CopyRecorder
from frx_graph.measure.operators.eager_observer import observe_eager
from frx_graph.measure.operators.operator_measurement import ObservedCopy

FLOAT = 4


def observe(module: nn.Module, *args: Tensor, train: bool = False) -> tuple[ObservedCopy, ...]:
    def step() -> None:
        with torch.set_grad_enabled(train):
            result = module(*args)
        if train:
            result.backward(torch.ones_like(result))

    return observe_eager(step, module)


def line_of(function: Callable[..., object], text: str) -> int:
    """The line of this file on which `text` stands in `function`'s source."""
    import inspect

    lines, start = inspect.getsourcelines(function)
    return next(start + offset for offset, line in enumerate(lines) if text in line)


class SlicedMatmul(nn.Module):
    """Products of fewer than 400 multiplications take a path that reads any strides (`LinearAlgebra.cpp`)."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a[:, ::2, ::2], b)


def test_a_matmul_of_a_slice_copies_each_matrix_where_it_is_called() -> None:
    copies = observe(SlicedMatmul(), torch.randn(3, 32, 32), torch.randn(3, 16, 16))
    assert [(c.operator, c.kind, c.role, c.shape) for c in copies] == [("aten.bmm", "operator", "input", (16, 16))] * 3
    assert sum(c.bytes for c in copies) == 3 * 2 * 256 * FLOAT
    site = copies[0].site
    assert (site.file, site.line) == (__file__, line_of(SlicedMatmul.forward, "torch.bmm"))
    assert (site.function, site.module_path) == ("forward", "model")


def test_a_matmul_of_contiguous_and_transposed_tensors_copies_nothing() -> None:
    class Product(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return torch.bmm(a, b.transpose(1, 2))

    copies = observe(Product(), torch.randn(2, 4, 8), torch.randn(2, 4, 8))
    assert copies == ()


class Reshaping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2).contiguous()
        z = x.transpose(1, 2).reshape(-1)
        w = x.flatten()
        return y.view(-1) + z + w


def test_explicit_and_reshape_copies_are_distinguished_and_views_ignored() -> None:
    copies = observe(Reshaping(), torch.randn(2, 3, 5))
    found = [(c.operator, c.kind, c.site.line, c.bytes) for c in copies]
    assert found == [
        ("aten.clone", "explicit", line_of(Reshaping.forward, "contiguous"), 2 * 30 * FLOAT),
        ("aten.reshape", "reshape", line_of(Reshaping.forward, "reshape"), 2 * 30 * FLOAT),
    ]


class Folding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.permute(0, 2, 3, 1))


@pytest.mark.parametrize("train", [False, True])
def test_what_matmul_folds_is_the_product_s_own_copy(train: bool) -> None:
    copies = observe(Folding(), torch.randn(2, 8, 4, 4), train=train)
    forward = [c for c in copies if c.phase is Phase.FORWARD]
    assert [(c.operator, c.kind, c.role, c.bytes) for c in forward] == [
        ("aten.matmul", "operator", "input", 2 * 256 * FLOAT)
    ]
    assert forward[0].site.module_path == "model.linear"


class BatchedProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3, 16, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, self.weight).transpose(1, 2).contiguous()


@pytest.mark.parametrize(("both", "found"), [(True, ("aten.reshape", "reshape")), (False, ("aten.matmul", "operator"))])
def test_a_gradient_that_two_products_share_is_reshaped_for_neither(both: bool, found: tuple[str, str]) -> None:
    x = torch.randn(2, 3, 4, 16, requires_grad=both)
    copies = observe(BatchedProduct(), x, train=True)
    backward = [c for c in copies if c.phase is Phase.BACKWARD]
    assert [(c.operator, c.kind, c.bytes) for c in backward] == [(*found, 2 * 2 * 3 * 4 * 8 * FLOAT)]


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def reorders(copies: tuple[ObservedCopy, ...]) -> Counter[tuple[str, str, str]]:
    return Counter((c.site.module_path, c.phase.value, c.role) for c in copies if c.kind == "reorder")


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_convolutions_in_plain_layout_convert_input_weight_and_output() -> None:
    copies = observe(Convolutions(), torch.randn(2, 16, 12, 12))
    assert {c.kind for c in copies} == {"reorder"}
    assert reorders(copies) == {
        (path, "forward", role): 1
        for path in ("model.layers.0", "model.layers.2")
        for role in ("input", "weight", "output")
    }
    image = 2 * 16 * 12 * 12
    weight = 16 * 16 * 9
    assert sum(c.bytes for c in copies) == 2 * FLOAT * (4 * image + image + weight + 2 * weight)
    line = line_of(Convolutions.forward, "layer(x)")
    assert {(c.site.file, c.site.line) for c in copies} == {(__file__, line)}


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_convolutions_in_channels_last_convert_only_the_weight() -> None:
    model = Convolutions().to(memory_format=torch.channels_last)
    copies = observe(model, torch.randn(2, 16, 12, 12).to(memory_format=torch.channels_last))
    assert {c.role for c in copies} == {"weight"}


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_backward_copies_belong_to_the_forward_call_site() -> None:
    copies = observe(Convolutions(), torch.randn(2, 16, 12, 12, requires_grad=True), train=True)
    backward = [c for c in copies if c.phase is Phase.BACKWARD]
    assert {c.operator for c in backward} == {"aten.convolution_backward"}
    line = line_of(Convolutions.forward, "layer(x)")
    assert {(c.site.file, c.site.line) for c in backward} == {(__file__, line)}
    assert {c.site.module_path for c in backward} == {"model.layers.0", "model.layers.2"}
    found = reorders(copies)
    assert found["model.layers.0", "backward", "input"] > 0
    assert found["model.layers.0", "backward", "weight"] > 0


class OddGradient(nn.Module):
    """The gradient of `weight` arrives transposed, and has to be stored in the parameter's strides."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.t()


def test_gradients_brought_into_their_parameter_s_strides() -> None:
    model = OddGradient()
    copies = observe(model, torch.randn(4, 6), train=True)
    (copy,) = copies
    assert (copy.operator, copy.kind, copy.role, copy.phase) == ("AccumulateGrad", "operator", "weight", Phase.BACKWARD)
    assert copy.site.line == line_of(OddGradient.forward, "weight.t()")
    assert copy.bytes == 2 * 24 * FLOAT


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("replaced", torch.zeros(3))
        self.replaced: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.replaced = self.replaced + 1
        with torch.no_grad():
            self.linear.bias.add_(1.0)
        noise = random.random() + float(numpy.random.rand())
        return functional.dropout(self.norm(self.linear(x)), 0.5) + noise


def test_everything_is_as_before_afterwards() -> None:
    model = Stateful()
    kept_gradient = torch.ones(4)
    model.linear.bias.grad = kept_gradient
    before = {name: value.clone() for name, value in model.state_dict().items()}
    replaced = model.replaced
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()

    observe(model, torch.randn(8, 4), train=True)

    after = model.state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]), name
    assert model.replaced is replaced
    assert model.linear.bias.grad is kept_gradient
    assert torch.equal(kept_gradient, torch.ones(4))
    assert model.linear.weight.grad is None
    assert random.getstate() == states[1]
    assert numpy.random.get_state()[1].tolist() == states[2]
    assert not model._forward_pre_hooks and not model._forward_hooks


def test_torch_generator_state_is_restored() -> None:
    model, x = Stateful(), torch.randn(8, 4)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    observe(model, x, train=True)
    assert torch.equal(torch.rand(4), expected)


def test_a_step_that_raises_leaves_everything_in_order() -> None:
    class Fails(Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            result = super().forward(x)
            self.calls += 1
            if self.calls == 2:
                raise ArithmeticError("the second run")
            return result

    model = Fails()
    bias = model.linear.bias.detach().clone()
    with pytest.raises(ArithmeticError, match="the second run"):
        observe(model, torch.randn(8, 4), train=True)
    assert torch.equal(model.linear.bias, bias)
    assert not model._forward_pre_hooks
    assert len(observe(SlicedMatmul(), torch.randn(1, 32, 32), torch.randn(1, 16, 16))) == 1


def test_a_graph_that_waits_for_its_backward_survives() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(), torch.randn(2, 4)
    waiting = model(x).sum()
    observe(model, x)
    waiting.backward()
    assert model[0].weight.grad is not None


def test_a_plain_function_can_be_observed() -> None:
    x = torch.randn(4, 6)
    copies = observe_eager(lambda: x.t().contiguous(), None)
    (copy,) = copies
    assert (copy.kind, copy.site.file, copy.site.module_path) == ("explicit", __file__, "")


def test_inside_another_recorder_the_error_is_clear() -> None:
    with CopyRecorder(), pytest.raises(EvidenceError, match="already running"):
        observe_eager(lambda: None, None)
