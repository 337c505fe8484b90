"""1x1 convolutions of small images, computed as matrix products in frozen graphs of Inductor."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

import frx_graph
from frx_graph.compiler.rewrite_log import LOG

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("nothing_compiled", "onednn_is_missing"),
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
    pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL"),
]
NAME = "pointwise_products"


def run(model: nn.Module, x: Tensor, tolerance: float = 1e-5) -> tuple[int, tuple[str, ...]]:
    """Compare a frozen model with eager; return how many convolutions became products, and why the others did not."""
    model.eval()
    compiled = frx_graph.compile(model, options={"plan": "solved", "freeze": True})
    with torch.no_grad():
        expected = model(x)
        for _ in range(2):
            found = compiled(x)
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
            assert found.stride() == expected.stride()
    graphs = LOG.read_all()
    count = Counter(one.rewrite for graph in graphs for one in graph.applied)[NAME]
    return count, tuple(one.reason for graph in graphs for one in graph.refused if one.subject == NAME)


class Inverted(nn.Module):
    """An inverted bottleneck of MobileNetV2, with a sum around it, and a classifier behind the mean of its pixels."""

    def __init__(self, width: int = 16, *, bias: bool = False) -> None:
        super().__init__()
        wide = 4 * width
        self.expand = nn.Sequential(nn.Conv2d(width, wide, 1, bias=bias), nn.BatchNorm2d(wide), nn.ReLU6())
        self.depth = nn.Sequential(nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.BatchNorm2d(wide), nn.ReLU6())
        self.project = nn.Sequential(nn.Conv2d(wide, width, 1, bias=bias), nn.BatchNorm2d(width))
        self.head = nn.Linear(width, 5)
        for norm in (one for one in self.modules() if isinstance(one, nn.BatchNorm2d)):
            nn.init.uniform_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x + self.project(self.depth(self.expand(x)))).mean((2, 3)))


class Excited(nn.Module):
    """Squeeze and excitation: two convolutions of one pixel scale the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 16, 3, padding=1)
        self.scale = nn.Sequential(nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return (y * self.scale(y.mean((2, 3), keepdim=True))).mean((2, 3))


class Then(nn.Module):
    """One convolution, and what reads it."""

    def __init__(self, read: nn.Module, **how: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(16, 8, **{"kernel_size": 1, **how})
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        return self.read(torch.relu(self.convolution(x.sin())))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def image(size: int = 7, channels: int = 16) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, channels, size, size)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_convolutions_of_a_bottleneck_are_products(bias: bool, memory_format: torch.memory_format) -> None:
    assert run(Inverted(bias=bias), image().contiguous(memory_format=memory_format)) == (2, ())


def test_convolutions_of_one_pixel_are_products() -> None:
    assert run(Excited(), image()) == (2, ())


@pytest.mark.parametrize(
    "how", [{"kernel_size": 3}, {"stride": 2}, {"padding": 1}, {"groups": 2}], ids=lambda how: next(iter(how))
)
def test_other_convolutions_stay(how: dict[str, int]) -> None:
    assert run(Then(Mean(), **how), image()) == (0, ())


def test_large_images_stay() -> None:
    count, reasons = run(Then(Mean()), image(size=80))
    assert count == 0
    assert reasons == ("oneDNN is faster for an image of this size",)


def test_half_precision_stays() -> None:
    count, reasons = run(Then(Mean()).bfloat16(), image().bfloat16(), 0.05)
    assert count == 0
    assert "single precision" in reasons[0]


class Strided(nn.Module):
    """Reads memory by its strides."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).as_strided((2, 4), (4, 1)).sum(1)


class Reinterpreted(nn.Module):
    """Reads pairs of elements as one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(torch.int32).flatten(1).sum(1)


class Conditional(nn.Module):
    """A branch gets the result."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        return torch.cond(y.sum() > 0, lambda y: y.mean((2, 3)), lambda y: y.sum((2, 3)), (y,))


@torch.library.custom_op("frx_tests::read_memory", mutates_args=())
def read_memory(x: Tensor) -> Tensor:
    return torch.tensor([float(stride) for stride in x.stride()])


@read_memory.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(4)


class Custom(nn.Module):
    """An operator that torch knows nothing about."""

    def forward(self, x: Tensor) -> Tensor:
        return read_memory(x)


READERS = (nn.Identity(), nn.Flatten(), nn.Unflatten(1, (2, 4)), Strided(), Reinterpreted(), Conditional(), Custom())


@pytest.mark.parametrize("read", READERS, ids=lambda read: type(read).__name__)
def test_strides_that_are_returned_or_read_stay(read: nn.Module) -> None:
    count, reasons = run(Then(read), image())
    assert count == 0
    assert len(reasons) == 1
    assert "strides" in reasons[0] or "returned" in reasons[0]


@pytest.mark.parametrize("number", range(2))
def test_refused_convolution_leaves_the_others(number: int) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(16, 8, 1), nn.Conv2d(16, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            parts = self.one(x), self.two(x)
            return (parts[number] * 2).as_strided((2, 8), (8, 1)) + parts[1 - number].mean((2, 3))

    count, reasons = run(Both(), image())
    assert count == 1
    assert len(reasons) == 1


def test_products_that_round_more_stay_convolutions() -> None:
    switch = torch.backends.mkldnn.matmul
    before, switch.fp32_precision = switch.fp32_precision, "bf16"
    try:
        count, reasons = run(Then(Mean()), image())
    finally:
        switch.fp32_precision = before
    assert count == 0
    assert "round more" in reasons[0]


def test_weights_that_change_are_packed_again() -> None:
    model = Inverted().eval()
    compiled = frx_graph.compile(model, options={"plan": "solved", "freeze": True})
    with torch.no_grad():
        compiled(image())
        model.expand[0].weight.mul_(2)
        torch.testing.assert_close(compiled(image()), model(image()), rtol=1e-5, atol=1e-5)


def test_special_values_stay() -> None:
    x = image()
    x[0, 3, 2, 2], x[1, 4, 1, 1] = float("nan"), float("inf")
    model = Then(Mean()).eval()
    compiled = frx_graph.compile(model, options={"plan": "solved", "freeze": True})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5, equal_nan=True)
