"""Programs compiled after `prepare` compute what eager computes on the same weights, strides of outputs included."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import frx_graph
from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler import eager
from frx_graph.compiler.eager import EagerPlan
from frx_graph.compiler.plans import make_current_plan
from frx_graph.prepack.prepare import prepare

pytestmark = [
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
    pytest.mark.usefixtures("channels_last_is_fastest"),
]

IMAGE = torch.randn(2, 3, 12, 10)
LAST = torch.channels_last
IMAGE_LAST = IMAGE.contiguous(memory_format=LAST)


class Returned(nn.Module):
    """Returns a convolution's result, one that a view shares its memory with, a reduction and a plain product."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3)
        self.second = nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.first(x)
        z = torch.relu(self.second(y))
        return {"image": y, "shared": (z, z.transpose(1, 2), z[:, 1:]), "mean": y.mean((2, 3)), "input": x * 2}


def compiled_and_eager(model: nn.Module, given: Tensor, plan: str = "all", inner: str = "eager", **how: Any) -> Any:
    """The prepared model, compiled and as a copy."""
    prepare(model, (given,), train=model.training, inner=inner)
    twin = copy.deepcopy(model)
    return torch.compile(model, backend="frx", options={"plan": plan, "inner": inner}, **how), twin


def strides(value: Any) -> list[tuple[int, ...]]:
    return [leaf.stride() for leaf in pytree.tree_leaves(value)]


@pytest.mark.integration
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_outputs_have_the_strides_of_eager(inner: str, train: bool) -> None:
    model = Returned().train(train)
    program, twin = compiled_and_eager(model, IMAGE, inner=inner)
    with torch.set_grad_enabled(train):
        for image in (IMAGE, IMAGE_LAST):
            ours, own = program(image), twin(image)
            assert strides(ours) == strides(own)
            torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-5)
            first, second, _ = ours["shared"]
            assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
            if train:
                for result in (ours, own):
                    sum(leaf.square().mean() for leaf in pytree.tree_leaves(result)).backward()
    assert model.first.weight.is_contiguous(memory_format=torch.channels_last)
    for ours, own in zip(model.parameters(), twin.parameters(), strict=True):
        if train:
            torch.testing.assert_close(ours.grad, own.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.integration
def test_symbolic_sizes_keep_strides_too() -> None:
    model = Returned().eval()
    program, twin = compiled_and_eager(model, IMAGE, dynamic=True)
    with torch.no_grad():
        for size in (12, 16):
            image = torch.randn(2, 3, size, 10)
            assert strides(program(image)) == strides(twin(image))


@pytest.mark.integration
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_a_frozen_program_computes_the_same(inner: str) -> None:
    model = Returned().eval()
    prepare(model, (IMAGE,), inner=inner)
    compiled = frx_graph.compile(model, options={"plan": "all", "inner": inner, "freeze": True})
    with torch.no_grad():
        result, expected = compiled(IMAGE), model(IMAGE)
    assert inner == "inductor" or strides(result) == strides(expected)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


class ForetoldWrongly(nn.Module):
    """Operators behind a convolution whose results lie otherwise than their fakes where the convolution's do."""

    def __init__(self, operator: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3)
        self.last = nn.Conv2d(8, 6, 2)
        self.operator = operator

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        if self.operator == "roll":
            z = y.roll(1, 0)
        elif self.operator == "channel_shuffle":
            z = F.channel_shuffle(y, 2)
        elif self.operator == "group_norm":
            z = F.group_norm(y, 2)
        else:
            # The gradient of the shuffle, channels-last, is multiplied.
            z = F.channel_shuffle(y @ y.transpose(-1, -2), 2)
        return z.relu(), self.last(z)


@pytest.mark.gives_way
def test_what_runs_as_it_was_traced_runs_on_stored_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    program, twin = compiled_and_eager(model := ForetoldWrongly("product").train(), IMAGE)
    rewrite_graph = eager.rewrite_graph

    def broken(*args: Any, phase: Phase, **how: Any) -> Any:
        if phase is Phase.BACKWARD:
            raise ZeroDivisionError("a bug")
        return rewrite_graph(*args, phase=phase, **how)

    monkeypatch.setattr(eager, "rewrite_graph", broken)
    ours, own = program(IMAGE), twin(IMAGE)
    assert model.last.weight.is_contiguous(memory_format=LAST)
    sum(result.square().mean() for result in own).backward()
    with pytest.warns(RuntimeWarning, match="a bug"):
        sum(result.square().mean() for result in ours).backward()
    for (name, parameter), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_images_that_lie_otherwise_than_their_fakes_run_on_stored_weights(size: int, train: bool) -> None:
    class Rolled(nn.Module):
        """A roll's fake is plain, the roll lies as what is rolled."""

        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Conv2d(4, 6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x.permute(0, 3, 1, 2).roll(1, 2))

    model, x = Rolled(), torch.randn(size, 8, 6, 4)
    program, twin = compiled_and_eager(model, x)
    with torch.set_grad_enabled(train):
        ours, own = program(x), twin(x)
    assert ours.stride() == own.stride()
    torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-5)
    assert model.last.weight.is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("train", [False, True])
def test_views_of_one_channel_keep_strides_that_fakes_miss(train: bool) -> None:
    class OneChannel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Conv2d(2, 1, 2, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x.contiguous(memory_format=LAST)).flatten(2).transpose(1, 2)

    model, x = OneChannel(), torch.randn(2, 2, 4, 4)
    program, twin = compiled_and_eager(model, x)
    with torch.set_grad_enabled(train):
        assert program(x).stride() == twin(x).stride()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("shuffled", [False, True])
def test_views_of_views_run_on_stored_weights(shuffled: bool, dynamic: bool | None) -> None:
    class Turned(nn.Module):
        """Of what a gradient's operator makes only a permuted view is viewed otherwise."""

        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Conv2d(2, 3, 2)
            self.weight = nn.Parameter(torch.randn(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            y = torch.einsum("nchw,wv->nchv", x, self.weight)
            return self.last(F.channel_shuffle(y, 2) if shuffled else y.roll(1, 2))

    torch.manual_seed(0)
    model, x = Turned(), torch.randn(2, 2, 6, 6)
    program, twin = compiled_and_eager(model, x, dynamic=dynamic)
    for results in (program(x.requires_grad_()), twin(x)):
        results.square().sum().backward()
    assert model.last.weight.is_contiguous(memory_format=LAST)
    for ours, own in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, own.grad, rtol=1e-3, atol=1e-4)


def test_program_that_cannot_be_repaired_runs_as_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(name: str) -> None:
        def broken(*_args: Any, **_how: Any) -> Any:
            raise ZeroDivisionError(name)

        monkeypatch.setattr(eager, name, broken)

    breaks("rewrite_graph")
    breaks("convert_inputs_back")
    failures: list[Exception] = []
    model = nn.Conv2d(3, 4, 3)
    # Not by name: the backend would compile the program without us where this fails.
    program = torch.compile(model, backend=EagerPlan(make_current_plan("all"), lambda _done: None, failures.append))
    torch.testing.assert_close(program(IMAGE[:, :3]), model(IMAGE[:, :3]))
    assert [str(failure) for failure in failures] == ["rewrite_graph", "convert_inputs_back"]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("operator", ["roll", "channel_shuffle", "group_norm", "product"])
@pytest.mark.parametrize("last", [False, True])
def test_operators_whose_fakes_are_wrong_keep_strides_too(operator: str, batch: int, train: bool, last: bool) -> None:
    model = ForetoldWrongly(operator).train(train)
    if last:
        model = model.to(memory_format=LAST)
    program, twin = compiled_and_eager(model, IMAGE)
    with torch.set_grad_enabled(train):
        ours, own = program(IMAGE[:batch]), twin(IMAGE[:batch])
    assert strides(ours) == strides(own)
    torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-5)
    # In front of a group norm it stays plain, in which that is more exact.
    assert model.first.weight.is_contiguous(memory_format=LAST) == (last or operator != "group_norm")
    if train:
        for results in (ours, own):
            sum(result.square().mean() for result in results).backward()
        for ours, own in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, own.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.integration
@pytest.mark.parametrize("plan", ["all", "solved"])
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_what_a_compiler_decomposes_keeps_strides_too(inner: str, plan: str) -> None:
    class Selected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.convolution = nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.convolution(x).index_select(1, torch.tensor([3, 1]))

    model = Selected().eval()
    program, twin = compiled_and_eager(model, IMAGE, plan, inner=inner)
    if inner == "inductor":
        # Inductor alone returns other strides than eager here, and no plan changes that.
        twin = torch.compile(twin)
    with torch.no_grad():
        ours, own = program(IMAGE), twin(IMAGE)
    assert strides(ours) == strides(own)
    torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-5)
    assert model.convolution.weight.is_contiguous(memory_format=LAST)


VIEWED = {
    "a slice and a reshape": lambda y: (y[:1], y.reshape(y.shape[0], -1)),
    "two reshapes": lambda y: (y.reshape(y.shape[0], -1), y.flatten(2)),
    "a reshape and what it reshapes": lambda y: (y.reshape(y.shape[0], 2, -1).transpose(1, 2), y),
    "a copy and what it copies": lambda y: (y.flatten(1) * 2, y),
    "a copy beside a reshaped one": lambda y: (y.clone(), y, y.clone().flatten(1)),
    "reshaped halves": lambda y: [half.flatten(1) for half in y.chunk(2, 1)],
    "reshaped parts and the whole": lambda y: (*(part.flatten(2) for part in y.split([3, 5], 1)), y),
    "an image as pixels": lambda y: (y.permute(0, 2, 3, 1).reshape(y.shape[0], -1, 8), y),
}


class Viewed(nn.Module):
    """A convolution for each kind of view of one, so that they are compiled together."""

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolutions = nn.ModuleDict({str(VIEWS.index(kind)): nn.Conv2d(3, 8, 3) for kind in kinds})

    def forward(self, x: Tensor) -> list[Any]:
        return [VIEWED[VIEWS[int(index)]](convolution(x)) for index, convolution in self.convolutions.items()]


VIEWS = list(VIEWED)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("inner", "kinds"),
    [
        *(("eager", [kind]) for kind in VIEWS),
        *(
            pytest.param("inductor", VIEWS[at : at + 2], marks=pytest.mark.integration)
            for at in range(0, len(VIEWS), 2)
        ),
    ],
)
def test_outputs_share_memory_as_they_did(inner: str, kinds: list[str], batch: int, train: bool) -> None:
    model = Viewed(kinds).train(train)
    program, twin = compiled_and_eager(model, IMAGE, inner=inner)
    with torch.set_grad_enabled(train):
        ours, own = program(IMAGE[:batch]), twin(IMAGE[:batch])
    assert all(each.weight.is_contiguous(memory_format=LAST) for each in model.convolutions.values())
    for one, other in zip(ours, own, strict=True):
        # AOTAutograd by itself gives dimensions of size 1 other strides, which mean nothing.
        assert inner == "inductor" or meaning_strides(one) == meaning_strides(other)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert len(storages(one)) == len(storages(other))


def meaning_strides(value: Any) -> list[list[int]]:
    leaves = pytree.tree_leaves(value)
    return [[stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True) if size != 1] for leaf in leaves]


def storages(value: Any) -> set[int]:
    return {leaf.untyped_storage().data_ptr() for leaf in pytree.tree_leaves(value)}


ONE_CHANNEL = {
    "a sum with a number": lambda y: y + 1,
    "rectified": torch.relu,
    "squared": lambda y: y * y,
    "several": lambda y: (y + 1, y * 2.5, y.sigmoid()),
}


class OneChannel(nn.Module):
    """As `Viewed`, of what comes behind a convolution of one channel."""

    def __init__(self, rank: int, behind: Sequence[str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        convolution = nn.Conv2d if rank == 4 else nn.Conv3d
        self.convolutions = nn.ModuleDict({name.replace(" ", "_"): convolution(3, 1, 3) for name in behind})

    def forward(self, x: Tensor) -> list[Any]:
        return [ONE_CHANNEL[name.replace("_", " ")](each(x)) for name, each in self.convolutions.items()]


@pytest.mark.integration
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("rank", [4, 5])
@pytest.mark.parametrize(
    ("inner", "behind"),
    [*(("eager", [name]) for name in ONE_CHANNEL), ("inductor", list(ONE_CHANNEL))],
    ids=[*ONE_CHANNEL, "all, inductor"],
)
def test_single_channel_output_keeps_its_strides(
    inner: str, behind: list[str], rank: int, train: bool, request: pytest.FixtureRequest
) -> None:
    if inner == "inductor" and rank == 4:
        # A known fault: the stride of the dimension of size 1 is not restored. See docs/internals/open_work.md.
        request.applymarker(pytest.mark.xfail(strict=True, reason="the stride of one channel differs under Inductor"))
    model = OneChannel(rank, behind).train(train)
    program, twin = compiled_and_eager(model, torch.randn(2, 3, *(6, 5, 4)[: rank - 2]), inner=inner)
    if inner == "inductor":
        twin = torch.compile(twin)
    with torch.set_grad_enabled(train):
        for batch in (2, 3, 1):
            image = torch.randn(batch, 3, *(6, 5, 4)[: rank - 2])
            ours, own = program(image), twin(image)
            assert strides(ours) == strides(own)
            torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-5)
    assert not any(each.weight.is_contiguous() for each in model.convolutions.values())
