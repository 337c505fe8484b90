"""Regions of frozen graphs that oneDNN computes: where they are made, where not, and what they return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frx_graph
from frx_graph.compiler.inner_compiler import make_planned_backend
from frx_graph.compiler.plans import make_proposing_plan, make_recorded_plan
from frx_graph.compiler.rewrite_log import LOG
from frx_graph.ops import onednn_region
from frx_graph.ops.onednn.library import find_library
from frx_graph.ops.onednn.steps import Convolution, Product, Region
from frx_graph.options import BackendOptions
from frx_graph.plan import Plan
from frx_graph.records import Candidate

REASON = found if isinstance(found := find_library(), str) else ""
pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("nothing_compiled"),
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
    pytest.mark.filterwarnings("error:frx. torch computes a part"),
    pytest.mark.skipif(bool(REASON), reason=REASON),
]
NAME = "onednn_regions"


@pytest.fixture(autouse=True)
def no_programs() -> None:
    onednn_region.forget_programs()


def freeze(model: nn.Module) -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = frx_graph.compile(model.eval(), options={"plan": "solved", "freeze": True})
    return compiled


def run(model: nn.Module, *inputs: Tensor) -> tuple[list[Region], tuple[str, ...]]:
    """Compare a frozen model with eager; return the regions that ran, and why others did not."""
    compiled = freeze(model)
    with torch.no_grad():
        expected = model(*inputs)
        for _ in range(2):
            found = compiled(*inputs)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert found.stride() == expected.stride()
    programs = onednn_region._programs.values()
    reasons = tuple(one.reason for graph in LOG.read_all() for one in graph.refused if one.subject == NAME)
    return [program._region for program in programs if program is not None], reasons


def count_sums(region: Region) -> int:
    return sum(isinstance(step, (Convolution, Product)) for step in region.steps)


def stir(model: nn.Module) -> nn.Module:
    """Give batch norms what training would leave in them."""
    for norm in (one for one in model.modules() if isinstance(one, nn.BatchNorm2d)):
        nn.init.uniform_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.uniform_(norm.bias)
    return model


class Residual(nn.Module):
    """A block with a sum around it, and a convolution on the way past it."""

    def __init__(self, width: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(width, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
        )
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs))
        self.past = nn.Sequential(nn.Conv2d(width, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.past(x))


def make_classifier() -> nn.Module:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return stir(
        nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Residual(16, 16), Residual(16, 32, 2), *head
        )
    )


class Inverted(nn.Module):
    """An inverted bottleneck of MobileNetV2 with its one-sided padding."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(16, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6())
        self.depth = nn.Sequential(nn.Conv2d(64, 64, 3, 2, groups=64, bias=False), nn.BatchNorm2d(64), nn.ReLU6())
        self.project = nn.Sequential(nn.Conv2d(64, 24, 1, bias=False), nn.BatchNorm2d(24))

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.depth(F.pad(self.expand(x), (0, 1, 0, 1)))).mean((2, 3))


class Excited(nn.Module):
    """SiLU, hardswish, squeeze and excitation, and values side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.SiLU())
        self.scale = nn.Sequential(nn.Conv2d(16, 4, 1), nn.Hardswish(), nn.Conv2d(4, 16, 1), nn.Sigmoid())
        self.last = nn.Conv2d(32, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = torch.cat([y, y * self.scale(y.mean((2, 3), keepdim=True))], 1)
        return F.avg_pool2d(self.last(y), 3, 2, 1).amax((2, 3))


class Encoder(nn.Module):
    """Attention and a perceptron, as in a transformer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (one(y).unflatten(-1, (2, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.second_norm(x))))


def image(channels: int = 3, size: int = 33) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, channels, size, size)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_classifier_is_one_region(memory_format: torch.memory_format) -> None:
    (region,), reasons = run(make_classifier(), image().contiguous(memory_format=memory_format))
    assert (count_sums(region), reasons) == (8, ())


def test_batch_norms_padding_and_activations_are_folded() -> None:
    (region,), reasons = run(stir(Inverted()), image(16))
    assert [step.kind for step in region.steps] == ["convolution"] * 3 + ["pooling", "reshape"]
    depth = region.steps[1]
    assert isinstance(depth, Convolution)
    assert (depth.before, depth.behind, [one.algorithm for one in depth.following]) == ((0, 0), (1, 1), ["clip"])
    assert reasons == ()


def test_activations_that_torch_takes_apart_are_found() -> None:
    (region,), _ = run(Excited(), image(8))
    algorithms = Counter(one.algorithm for step in region.steps for one in getattr(step, "following", ()))
    assert algorithms["swish"] == 1
    assert count_sums(region) == 4


def test_products_of_a_transformer_are_fused_with_what_follows() -> None:
    regions, reasons = run(Encoder(), torch.randn(2, 20, 32))
    found = [
        [[one.algorithm for one in step.following] for step in region.steps if isinstance(step, Product)]
        for region in regions
    ]
    assert sorted(found) == [[[]], [["add"]], [["gelu"], ["add"]]]
    assert reasons == ()


class Between(nn.Module):
    """Convolutions with something between them that oneDNN is not asked for."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)) for _ in range(2)
        )
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.parts[1](self.between(self.parts[0](x)))


def test_other_operators_divide_regions() -> None:
    regions, _ = run(Between(lambda x: x.cumsum(2)), image(8))
    assert [count_sums(region) for region in regions] == [2, 2]


def test_a_value_does_not_leave_a_region_and_come_back() -> None:
    """The sum needs both the first part and what is computed of it elsewhere."""
    regions, _ = run(Between(lambda x: x + x.cumsum(2)), image(8))
    assert [count_sums(region) for region in regions] == [2, 2]


class Alone(nn.Module):
    def __init__(self, **how: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, **{"kernel_size": 3, **how})

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x.sin()).cos()


def test_a_convolution_between_conversions_stays() -> None:
    regions, reasons = run(Alone(), image(8))
    assert (regions, reasons) == ([], ("images would be converted too often",))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(8, 8, 3), nn.ConvTranspose2d(8, 8, 3)),
        nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)).double(),
    ],
    ids=["transposed", "double"],
)
def test_what_is_not_described_stays(model: nn.Module) -> None:
    regions, _ = run(model, image(8).to(next(model.parameters()).dtype))
    assert not any(isinstance(step, Convolution) for region in regions for step in region.steps)


class Written(nn.Module):
    """Writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.parts(x)
        x.zero_()
        return y


def test_a_graph_that_writes_into_its_inputs_stays() -> None:
    model = Written()
    compiled, x = freeze(model), image(8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x.clone()), model(x.clone()), rtol=1e-4, atol=1e-5)
    assert not onednn_region._programs


def check_between(between: Callable[[Tensor], Tensor]) -> None:
    run(Between(between), image(8))


def test_operators_that_only_resemble_others_keep_their_meaning() -> None:
    """Rounded quotients, sums with a factor, volumes, and views that begin elsewhere."""
    check_between(lambda x: torch.div(x, 2, rounding_mode="floor"))
    check_between(lambda x: torch.add(x, x, alpha=3))
    check_between(lambda x: torch.sub(1, x))
    check_between(lambda x: F.max_pool3d(x, (1, 3, 3), 1, (0, 1, 1)))
    check_between(lambda x: torch.as_strided(x[1:], (1, *x.shape[1:]), x.stride(), 0).expand_as(x).contiguous())
    check_between(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True))
    check_between(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False))
    check_between(lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True))
    check_between(lambda x: x * x.mean(3, keepdim=True))
    check_between(lambda x: torch.cat([x, x], 1)[:, 4:12] + x)


class Scaled(nn.Module):
    """A product whose rows have factors of their own, as many as it has columns."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("factors", torch.rand(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.factors


@pytest.mark.parametrize(
    ("shape", "count"), [((8, 1, 1), None), ((8, 1), None), ((8,), 1), ((1, 8, 8), 1), ((1, 1, 8), 1)], ids=str
)
def test_factors_of_rows_are_not_those_of_columns(shape: tuple[int, ...], count: int | None) -> None:
    """oneDNN may have no fast kernel for the former."""
    regions, _ = run(Scaled(*shape), torch.randn(8, 8, 8))
    assert count is None or [count_sums(region) for region in regions] == [count]


def test_infinities_stay() -> None:
    x = image(8)
    x[0, :, 0, 0] = -torch.inf
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1), nn.Hardtanh(-torch.inf, 1)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.abs_()
        found, expected = freeze(model)(x), model(x)
    assert expected.isneginf().any()
    assert torch.equal(found.isneginf(), expected.isneginf())


@pytest.mark.parametrize("change", ["in place", "data", "replaced"])
def test_changed_weights_are_noticed(change: str) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)).eval()
    compiled, x = freeze(model), torch.randn(4, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        match change:
            case "in place":
                model[0].weight.mul_(2)
            case "data":
                model[0].weight.data.mul_(2)
            case "replaced":
                model[0].weight = nn.Parameter(2 * model[0].weight)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_two_models_of_one_class_have_programs_of_their_own() -> None:
    x = torch.randn(4, 16)
    for _ in range(2):
        run(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)), x)


def test_another_size_is_another_region() -> None:
    model = make_classifier().eval()
    compiled = freeze(model)
    with torch.no_grad():
        for size in (33, 65, 33):
            torch.testing.assert_close(compiled(image(size=size)), model(image(size=size)), rtol=1e-4, atol=1e-5)


def test_a_recorded_plan_makes_the_same_regions() -> None:
    def fails(error: Exception) -> None:
        raise error

    model = make_classifier().eval()
    chosen = Candidate("inner_choice", "", (), ("freezing",))

    def run_plan(plan: Plan) -> list[str]:
        onednn_region.forget_programs()
        torch._dynamo.reset()
        with torch.no_grad():
            compiled = torch.compile(model, backend=make_planned_backend(BackendOptions(), plan, fails))
            torch.testing.assert_close(compiled(image()), model(image()), rtol=1e-4, atol=1e-5)
        return [key[0] for key in onednn_region._programs]

    proposed = run_plan(make_proposing_plan((NAME,), (chosen,)))
    made = [replace(one, graph_id=graph.signature) for graph in LOG.read_all() for one in graph.applied]
    recorded = tuple(one for one in made if one.rewrite == NAME)
    assert recorded
    assert run_plan(make_recorded_plan((chosen, *recorded))) == proposed
