"""What one run shows is what autograd and eager make of it, and leaves nothing behind."""

import pytest
import torch
from torch import Tensor, nn

from frx_graph.capture.observed_call import calls_differ, observed_call
from frx_graph.capture.whole_program import WholeProgram, whole_program

LAST = torch.channels_last
GAPS = torch.randn(2, 3, 8, 10)[..., 1:-1]
ONE_WITH_GAPS = torch.randn(2, 1, 8, 10)[..., 1:-1]


@pytest.mark.parametrize("stored", [torch.contiguous_format, LAST])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "image",
    [
        torch.randn(2, 3, 8, 8),
        torch.randn(2, 3, 8, 8).to(memory_format=LAST),
        torch.randn(2, 1, 8, 8),
        torch.randn(2, 1, 8, 8).to(memory_format=LAST),
        GAPS,
        GAPS.permute(0, 1, 3, 2),
        ONE_WITH_GAPS,
        torch.randn(2, 1, 8, 8).expand(2, 3, 8, 8),
    ],
)
def test_gradients_lie_as_a_backward_makes_them(image: Tensor, transposed: bool, stored: torch.memory_format) -> None:
    channels = image.shape[1]
    convolution = nn.ConvTranspose2d(channels, 4, 3) if transposed else nn.Conv2d(channels, 4, 3)
    model = convolution.to(memory_format=stored)
    leaf = image.detach().requires_grad_()
    seen = observed_call(captured(model, leaf), train=True)
    assert leaf.grad is None
    result = model(leaf)
    (gradient,) = torch.autograd.grad(result, leaf, torch.ones_like(result))
    assert list(seen.gradient_strides.values()) == [gradient.stride()]


def test_gradients_that_would_lie_otherwise_are_a_difference() -> None:
    model = nn.ConvTranspose2d(1, 3, 3)
    leaf = ONE_WITH_GAPS.detach().requires_grad_()
    before = observed_call(captured(model, leaf), train=True)
    assert calls_differ(before, observed_call(captured(model, leaf), train=True)) is None
    after = observed_call(captured(model.to(memory_format=LAST), leaf), train=True)
    assert calls_differ(before, after) == "a gradient of what it is given would lie otherwise"


def captured(model: nn.Module, *args: Tensor) -> WholeProgram:
    return whole_program(model, args, {}, gradients=True, as_eager=True)


class Writing(nn.Module):
    """Writes into a buffer and into what it is given, once through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor, part: Tensor) -> Tensor:
        self.count.add_(1)
        part.mul_(2)
        return x + self.count


def test_what_the_graph_writes_the_program_does_not_see() -> None:
    model, x = Writing(), torch.zeros(2, 3)
    program = captured(model, x, x[0])
    for _ in range(2):
        values = observed_call(program, train=False).values
        assert sorted(float(value.sum()) for name, value in values.items() if not name.startswith("output")) == [
            0,
            0,
            3,
        ]
    assert float(model.count.sum()) == 0
    assert (x._version, model.count._version) == (0, 0)


def test_inputs_that_share_memory_share_it_in_the_run() -> None:
    x = torch.ones(2, 3)
    program = captured(Writing(), x, x[0])
    (made,) = [value for name, value in observed_call(program, train=False).values.items() if name == "output 0"]
    assert made.tolist() == [[3, 3, 3], [2, 2, 2]]


def test_autocast_keeps_nothing_of_it() -> None:
    model = nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        program = captured(model, torch.ones(2, 4))
        before = observed_call(program, train=True).values["output 0"]
        with torch.no_grad():
            model.weight.add_(1)
        assert not torch.equal(observed_call(program, train=True).values["output 0"], before)
        torch.testing.assert_close(model(torch.ones(2, 4)), observed_call(program, train=True).values["output 0"])


RUNS: list[Tensor] = []


@torch.library.custom_op("frx_tests_observed::counted", mutates_args=())
def counted(x: Tensor) -> Tensor:
    RUNS.append(x)
    return x * 2


@counted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


counted.register_autograd(lambda context, gradient: counted(gradient))


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return counted(self.layer(x)).relu()


@pytest.mark.parametrize("train", [False, True])
def test_operators_that_are_not_torchs_do_not_run(train: bool) -> None:
    model, x = Counted(), torch.randn(2, 3, 6, 6)
    RUNS.clear()
    with torch.set_grad_enabled(train):
        program = captured(model, x)
        ours, again = (observed_call(program, train=train) for _ in range(2))
    assert RUNS == []
    assert ours.values["output 0"].shape == (2, 4, 4, 4)
    assert ours.values["output 0"].count_nonzero() > 0
    assert ours.values.keys() == again.values.keys()
    for name, value in ours.values.items():
        assert torch.equal(value, again.values[name])
    gradients = [value for name, value in ours.values.items() if name.startswith("gradient of parameter")]
    assert all(gradient.count_nonzero() > 0 for gradient in gradients)
    assert bool(gradients) == train
