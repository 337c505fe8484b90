from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from frx_graph.capture.whole_upsampling import whole_upsampling

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


def test_what_is_taken_away_is_put_back() -> None:
    operator = torch.ops.aten.upsample_bilinear2d.vec
    before = dict(operator.py_kernels)
    with pytest.raises(ZeroDivisionError), whole_upsampling():
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
