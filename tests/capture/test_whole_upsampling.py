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
