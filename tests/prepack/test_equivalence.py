"""Weights are stored anew only where the program cannot tell."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frx_graph
from frx_graph.capture.observed_call import ObservedCall, observed_call
from frx_graph.capture.whole_program import whole_program
from frx_graph.prepack.equivalence import computes_otherwise
from frx_graph.prepack.prepare import Prepared, prepare

pytestmark = [
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
    pytest.mark.usefixtures("channels_last_is_fastest"),
]

IMAGE = torch.randn(2, 3, 12, 10)
SHAPE, PLAIN = (2, 8, 12, 10), (960, 120, 10, 1)


@torch.library.custom_op("frx_test::told_strides", mutates_args=())
def told_strides(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format) * (2 if x.stride(1) == 1 else 1)


@told_strides.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


told_strides.register_autograd(lambda _ctx, gradient: gradient)


class TellingBackward(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        return gradient if gradient.is_contiguous() else gradient * 2


class Between(nn.Module):
    """Two convolutions, something between them, and something behind."""

    def __init__(self, between: Callable[[Tensor], Any], behind: Callable[[Tensor], Any] = torch.relu) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.between, self.behind = between, behind

    def forward(self, x: Tensor) -> Any:
        return self.behind(self.second(self.between(self.first(x))))


def asks(y: Tensor) -> Tensor:
    return y if y.is_contiguous() else y * 2


def with_operator(y: Tensor) -> Tensor:
    return told_strides(y)


def counts(y: Tensor) -> Tensor:
    return y * (1.0 / y.stride(3))


def first_in_memory(y: Tensor) -> Tensor:
    """Of sixteen values in the order of memory, sign and exponent: last digits are the processor's business."""
    return (torch.tensor(y.untyped_storage()[:64].tolist()[3::4]) * torch.arange(16)).sum()


SEEING = {
    "asks": Between(asks),
    "asks in the end": Between(torch.relu, asks),
    "counts": Between(counts),
    "is told places": Between(lambda y: torch.as_strided(y, SHAPE, PLAIN)),
    "is told places in the end": Between(torch.relu, lambda y: torch.as_strided(y, (5,), (7,))),
    "operator": Between(with_operator),
    "reads memory": Between(lambda y: y + first_in_memory(y)),
    "returns strides": Between(torch.relu, lambda y: (y, y.stride(1))),
}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", SEEING)
def test_a_program_that_sees_strides_keeps_its_weights(name: str, train: bool) -> None:
    model = copy.deepcopy(SEEING[name]).train(train)
    data = {key: value.data_ptr() for key, value in model.named_parameters()}
    prepared = prepare(model, (IMAGE,), train=train, inner="eager")
    assert converted(prepared) == ({"second.weight"} if name in ("is told places", "operator") else set())
    assert {key: value.data_ptr() for key, value in model.named_parameters() if key not in prepared.converted} == {
        key: value for key, value in data.items() if key not in prepared.converted
    }


@pytest.mark.integration
@pytest.mark.parametrize("name", SEEING)
def test_so_does_one_that_is_compiled(name: str) -> None:
    model = copy.deepcopy(SEEING[name]).train()
    expected = model(IMAGE)
    torch.testing.assert_close(
        frx_graph.compile(model, options={"plan": "all", "inner": "eager"})(IMAGE), expected, rtol=1e-4, atol=1e-5
    )


def test_weights_behind_an_operator_that_sees_strides_are_stored_anew() -> None:
    prepared = prepare(Between(with_operator).eval(), (IMAGE,), inner="eager")
    assert prepared.converted == {"second.weight": (0, 2, 3, 1)}
    (refusal,) = prepared.refused
    assert refusal.subject == "model.first.weight"
    assert "reaches frx_test.told_strides, which sees how it lies" in refusal.reason


@pytest.mark.parametrize("train", [False, True])
def test_functions_whose_backward_is_a_programs_own_keep_the_weights_where_they_are(train: bool) -> None:
    prepared = prepare(Between(TellingBackward.apply).train(), (IMAGE,), train=train, inner="eager")
    assert prepared.converted == {}
    assert any("a torch.autograd.Function" in refusal.reason for refusal in prepared.refused)


@pytest.mark.parametrize("gaps", [False, True])
def test_gradients_of_arguments_have_the_strides_that_they_had(gaps: bool) -> None:
    """Also those that no leaf has autograd lay out."""
    image = torch.randn(2, 3, 12, 10)[:: 2 if gaps else 1].requires_grad_()
    prepared = prepare(Between(torch.relu).train(), (image,), train=True, inner="eager")
    assert prepared.converted == {}
    assert any("a gradient of what it is given" in refusal.reason for refusal in prepared.refused)
    assert image.grad is None


def converted(prepared: Prepared) -> set[str]:
    return set(prepared.converted)


class Deep(nn.Module):
    """Ten convolutions with batch norms: their gradients in channels-last are far from those in plain."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(10)
        ]
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


BLIND = {
    "plain": Between(torch.relu),
    "dropout": Between(lambda y: torch.dropout(y, 0.5, True)),
    "noise": Between(lambda y: y + torch.rand_like(y) + torch.empty_like(y).normal_()),
    "makes it contiguous": Between(lambda y: y if y.is_contiguous() else y.contiguous()),
    "reads a number": Between(lambda y: y * float(y.detach().mean())),
    "largest": Between(torch.relu, lambda y: y.argmax(1)),
    "in place": Between(lambda y: y.mul_(2).add_(1)),
    "by a product": Between(lambda y: (y.movedim(1, 3) @ torch.eye(8)).movedim(3, 1)),
    "not finite": Between(torch.relu, lambda y: y / torch.zeros_like(y)),
    "nothing": Between(torch.relu, lambda y: y[:0]),
    "deep": Deep(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", BLIND)
def test_a_program_that_sees_none_gets_them_stored_anew(name: str, train: bool, dtype: torch.dtype) -> None:
    model = copy.deepcopy(BLIND[name]).to(dtype).train(train)
    if name == "by a product" and dtype is torch.bfloat16:
        model = Between(lambda y: (y.movedim(1, 3) @ torch.eye(8, dtype=dtype)).movedim(3, 1)).to(dtype)
    wanted = {key for key, value in model.named_parameters() if value.dim() == 4 and value.is_contiguous()}
    prepared = prepare(model, (IMAGE.to(dtype),), train=train, inner="eager")
    assert (prepared.refused, converted(prepared)) == ((), wanted)


def test_what_is_wrong_by_little_is_found() -> None:
    """A fault of a hundredth, where rounding moves a millionth."""
    model = Between(torch.relu).eval()
    program = whole_program(model, (IMAGE,), {}, gradients=True, as_eager=True)
    before = observed_call(program, train=False)
    wrong = replace(before, values={**before.values, "output 0": before.values["output 0"] * 1.01})

    def noisy(disturbance: Any) -> ObservedCall:
        return observed_call(program, train=False, disturbance=disturbance)

    assert "output 0" in str(computes_otherwise(before, wrong, noisy))
    model.to(memory_format=torch.channels_last)
    anew = whole_program(model, (IMAGE,), {}, gradients=True, as_eager=True)
    assert computes_otherwise(before, observed_call(anew, train=False), noisy) is None


def test_state_and_random_numbers_are_as_before() -> None:
    model = Between(lambda y: torch.dropout(y, 0.5, True)).train()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    versions = [parameter._version for parameter in model.parameters()]
    assert converted(prepare(model, (IMAGE,), train=True, inner="eager")) == {"first.weight", "second.weight"}
    assert torch.equal(torch.rand(3), expected)
    assert [parameter._version for parameter in model.parameters()] == versions
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not math.isnan(float(model(IMAGE).sum().detach()))


class Named(Tensor):
    """A tensor of another kind."""


def test_tensors_of_another_kind_keep_the_weights_where_they_are() -> None:
    prepared = prepare(Between(torch.relu).eval(), (IMAGE.as_subclass(Named),), inner="eager")
    assert prepared.converted == {}
    assert any("tensors of another kind" in refusal.reason for refusal in prepared.refused)
    model = Between(torch.relu).eval()
    model.register_buffer("named", torch.ones(1).as_subclass(Named))
    model.between = lambda y: y * model.named
    assert prepare(model, (IMAGE,), inner="eager").converted == {}


class Later(nn.Module):
    """Sees strides where it is told to."""

    def __init__(self, seeing: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.seeing = seeing

    def forward(self, x: Tensor, sees: bool) -> Tensor:
        y = self.convolution(x)
        return self.seeing(y) * 2 if sees else y


@pytest.mark.integration
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize(
    "seeing",
    [with_operator, lambda y: torch.as_strided(y, (5,), (7,)), lambda y: y.as_strided((5,), (7,)), told_strides],
)
def test_what_a_later_call_compiles_sees_the_strides_from_before(
    seeing: Callable[[Tensor], Tensor], freeze: bool
) -> None:
    model = Later(seeing).train()
    compiled = frx_graph.compile(model, options={"plan": "all", "inner": "eager", "freeze": freeze})
    expected = model(IMAGE, True)
    compiled(IMAGE, False)
    assert not model.convolution.weight.is_contiguous()
    model.eval()
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            torch.testing.assert_close(compiled(IMAGE, True), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "error", "is_found"),
    [("buffer", 2e-7, False), ("buffer", 1e-4, True), ("gradient of parameter", 2e-7, True)],
)
def test_a_mean_of_many_may_be_off_by_what_it_sums(name: str, error: float, is_found: bool) -> None:
    given = {"argument 0": torch.ones(4), f"{name} mean": torch.full((4,), 1e-5)}
    before = ObservedCall((), given, (), frozenset(), {})
    after = ObservedCall((), {**given, f"{name} mean": given[f"{name} mean"] + error}, (), frozenset(), {})
    assert (computes_otherwise(before, after, lambda _disturbance: before) is not None) == is_found
