import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from frx_graph.capture.whole_upsampling import can_upsample_whole, keep_upsampling_whole

pytestmark = pytest.mark.filterwarnings("ignore:frx applies rewrites")

MODES = {"nearest": (1, 3, 4, 4), "nearest-exact": (1, 3, 4, 4), "bilinear": (1, 3, 4, 4), "trilinear": (1, 3, 2, 4, 4)}


@pytest.mark.parametrize("mode", MODES)
def test_eager_plans_keep_upsampling_whole(mode: str) -> None:
    torch._dynamo.reset()
    seen: list[str] = []

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def program(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2, mode=mode).relu()

    x = torch.randn(MODES[mode], requires_grad=True)
    compiled = torch.compile(program, backend="frx", options={"plan": "all", "inner": "eager"})
    made = compiled(x)
    (gradient,) = torch.autograd.grad(made.square().sum(), x)
    (expected,) = torch.autograd.grad(program(x).square().sum(), x)
    torch.testing.assert_close(made, program(x))
    torch.testing.assert_close(gradient, expected)
    with Seen(), torch.no_grad():
        compiled(x)
    assert any("upsample" in name for name in seen)
    assert "aten.index.Tensor" not in seen


def test_sizes_that_change_stay_free() -> None:
    torch._dynamo.reset()

    def program(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2, mode="nearest-exact")

    compiled = torch.compile(program, backend="frx", options={"plan": "all", "inner": "eager"}, dynamic=True)
    compiled(torch.randn(2, 3, 5))
    with torch.compiler.set_stance("fail_on_recompile"):
        x = torch.randn(4, 3, 7)
        torch.testing.assert_close(compiled(x), program(x))


def test_removed_kernels_are_restored() -> None:
    operator = torch.ops.aten.upsample_bilinear2d.vec
    before = dict(operator.py_kernels)
    with pytest.raises(ZeroDivisionError), keep_upsampling_whole():
        assert before.keys() > operator.py_kernels.keys()
        raise ZeroDivisionError
    assert operator.py_kernels == before
    torch._dynamo.reset()
    model = nn.Upsample(scale_factor=2, mode="bilinear")
    x = torch.randn(1, 3, 4, 4)
    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(x), model(x))


@torch.library.custom_op("frx_test::upsample_by", mutates_args=())
def upsample_by(factor: float, image: Tensor) -> Tensor:
    return image * factor


@upsample_by.register_fake
def _(factor: float, image: Tensor) -> Tensor:
    return torch.empty_like(image)


@torch.library.custom_op("frx_test::upsample_written", mutates_args=("image",))
def upsample_written(image: Tensor) -> None:
    image.mul_(2)


@torch.compiler.allow_in_graph
def interpolate_between(images: list[Tensor], share: float) -> Tensor:
    return images[0] * share + images[1] * (1 - share)


def written(image: Tensor) -> Tensor:
    result = image.clone()
    torch.ops.frx_test.upsample_written(result)
    return result


@pytest.mark.parametrize(
    "upsample",
    [
        lambda image: torch.ops.aten.upsample_nearest2d.default(self=image, output_size=[7, 7]),
        lambda image: torch._C._nn.upsample_nearest2d(input=image, output_size=(7, 7)),
        lambda image: torch.ops.frx_test.upsample_by(image=image, factor=2.0),
        lambda image: torch.ops.frx_test.upsample_by(2.0, image),
        lambda image: interpolate_between([image, image + 1], 0.25),
        written,
    ],
    ids=["keywords", "torch's binding", "an operator with keywords", "a number first", "a list", "nothing returned"],
)
def test_whatever_is_called_so_runs(upsample: Callable[[Tensor], Tensor]) -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 3, 4, 5)
    compiled = torch.compile(
        lambda x: upsample(x.sin()), backend="frx", options={"plan": "all", "inner": "eager"}, fullgraph=True
    )
    torch.testing.assert_close(compiled(x), upsample(x.sin()))


def moved(image: Tensor) -> Tensor:
    """Of an image that does not lie so, which taken apart makes other strides than the operator."""
    return functional.interpolate(image.transpose(0, 1), scale_factor=2, mode="nearest-exact")


def in_a_checkpoint(upsample: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda image: checkpoint(upsample, image, use_reentrant=False)


@torch.compiler.allow_in_graph
def moved_unseen(image: Tensor) -> Tensor:
    return moved(image)


@pytest.mark.parametrize(
    "upsample", [moved, in_a_checkpoint(moved), in_a_checkpoint(in_a_checkpoint(moved)), moved_unseen]
)
def test_strides_that_the_program_has_read_are_what_it_gets(upsample: Callable[[Tensor], Tensor]) -> None:
    def program(image: Tensor) -> Tensor:
        made = upsample(image)
        return torch.as_strided(made, made.size(), made.stride())

    torch._dynamo.reset()
    image = torch.randn(2, 4, 6)
    compiled = torch.compile(program, backend="frx", options={"plan": "all", "inner": "eager"}, fullgraph=True)
    torch.testing.assert_close(compiled(image), program(image))


def as_it_lies(image: Tensor) -> Tensor:
    return functional.interpolate(image, scale_factor=2, mode="nearest-exact")


def beside_an_operator(image: Tensor) -> Tensor:
    return as_it_lies(torch.ops.frx_test.upsample_by(2.0, image))


@pytest.mark.parametrize(
    ("upsample", "whole"),
    [
        (as_it_lies, True),
        (in_a_checkpoint(as_it_lies), True),
        (lambda image: torch._C._nn.upsample_nearest1d(image, (7,)), True),
        (lambda image: torch.ops.aten.upsample_nearest1d.default(self=image, output_size=[7]), True),
        (moved, False),
        (in_a_checkpoint(moved), False),
        (moved_unseen, False),
        (beside_an_operator, False),
    ],
)
def test_what_is_kept_whole(upsample: Callable[[Tensor], Tensor], whole: bool) -> None:
    found: list[bool] = []

    def compiled(dynamo: fx.GraphModule, _inputs: object) -> Callable[..., object]:
        found.append(can_upsample_whole(dynamo))
        return dynamo.forward

    torch._dynamo.reset()
    torch.compile(lambda image: upsample(image), backend=compiled, fullgraph=True)(torch.randn(2, 4, 6))
    assert found == [whole]


def test_opaque_module_call_prevents_whole_upsampling() -> None:
    graph = fx.Graph()
    graph.output(graph.call_module("0", (graph.placeholder("image"),)))
    assert not can_upsample_whole(fx.GraphModule(nn.Sequential(nn.Upsample(scale_factor=2)), graph))


def test_check_emits_no_extra_warnings() -> None:
    found: list[bool] = []

    def compiled(dynamo: fx.GraphModule, _inputs: object) -> Callable[..., object]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found.append(can_upsample_whole(dynamo))
        return dynamo.forward

    torch._dynamo.reset()
    with warnings.catch_warnings():
        # That it is deprecated.
        warnings.simplefilter("ignore")
        torch.compile(lambda x: functional.upsample(x, scale_factor=2), backend=compiled)(torch.randn(2, 4, 6))
    assert found == [True]
