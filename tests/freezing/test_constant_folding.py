"""Models frozen for eager execution: what they notice, and what they leave as it is."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch._inductor import config as inductor_config
from torch.utils.flop_counter import FlopCounterMode

import frx_graph
from frx_graph import backend

pytestmark = pytest.mark.filterwarnings("ignore:frx applies rewrites")
IMAGE = torch.randn(2, 8, 12, 12)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    backend.clear()


def frozen(model: nn.Module, **how: object) -> nn.Module:
    return frx_graph.compile(model.eval(), options={"inner": "eager", "plan": "all", "freeze": True}, **how)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(1600, 5))


def applied() -> set[str]:
    return {candidate.rewrite for graph in backend.rewritten() for candidate in graph.applied}


def same(compiled: nn.Module, model: nn.Module, *args: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), model(*args), rtol=1e-4, atol=1e-5)


def test_weights_follow_their_changes() -> None:
    model = network()
    compiled = frozen(model)
    same(compiled, model, IMAGE)
    with torch.no_grad():
        model[0].weight.mul_(2)
    same(compiled, model, IMAGE)
    model[4].bias.data = torch.ones(5)
    same(compiled, model, IMAGE)
    same(compiled, model, IMAGE)
    assert "blocked_layout" in applied()


def test_they_may_give_way_to_other_tensors() -> None:
    model = network()
    compiled = frozen(model)
    same(compiled, model, IMAGE)
    for change in (
        lambda: setattr(model[0], "weight", nn.Parameter(torch.randn(16, 8, 3, 3))),
        lambda: setattr(model[1], "running_mean", torch.randn(16)),
    ):
        change()
        for _ in range(2):
            same(compiled, model, IMAGE)


def test_buffers_are_watched() -> None:
    model = network()
    compiled = frozen(model)
    same(compiled, model, IMAGE)
    model[1].running_var.fill_(4)
    same(compiled, model, IMAGE)


def test_gradients_are_not_frozen() -> None:
    model = network()
    compiled = frozen(model)
    compiled(IMAGE).sum().backward()
    assert model[0].weight.grad is not None
    assert "blocked_layout" not in applied()


def test_training_mode_is_not_frozen() -> None:
    model = network()
    compiled = frozen(model)
    model.train()
    with torch.no_grad():
        compiled(IMAGE)
    assert "folded_norms" not in applied()
    assert model[1].num_batches_tracked == 1


class Counting(nn.Module):
    """Writes into a buffer in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.convolution(x) * self.calls


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:frx. the weights are not frozen")
def test_a_program_that_writes_into_its_buffers_is_not_frozen() -> None:
    model, other = Counting(), Counting()
    other.load_state_dict(model.state_dict())
    compiled = frozen(model)
    with torch.no_grad():
        for _ in range(6):
            torch.testing.assert_close(compiled(IMAGE), other(IMAGE), rtol=1e-4, atol=1e-5)
    assert model.calls == 6
    assert "blocked_layout" not in applied()


class Unregistered(nn.Module):
    """Holds a tensor that is neither a parameter nor a buffer, which nobody watches."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3)
        self.offset = torch.zeros(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x) + self.offset


def test_unwatched_tensor_is_not_a_constant() -> None:
    model = Unregistered()
    compiled = frozen(model)
    same(compiled, model, IMAGE)
    assert "blocked_layout" in applied()
    model.offset.fill_(3)
    same(compiled, model, IMAGE)


class Returning(nn.Module):
    """Returns a parameter, a view of one and something computed of one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return x @ self.weight, self.weight, self.weight[0], self.weight * 2


def test_what_is_returned_is_the_parameters_own_or_new_memory() -> None:
    model = Returning()
    compiled = frozen(model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        compiled(x)
        _, whole, row, doubled = compiled(x)
        again = compiled(x)[3]
    assert whole is model.weight
    assert row.data_ptr() == model.weight.data_ptr()
    assert doubled.data_ptr() != again.data_ptr()
    same(compiled, model, x)


class Doubling(nn.Module):
    """Returns what is computed of a parameter alone, and a view of another such value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.linear(x), self.linear.weight * 2, (self.linear.weight + 1)[1:]


def test_returned_value_is_computed_in_each_call() -> None:
    model = Doubling()
    compiled = frozen(model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        compiled(x)
        for value in compiled(x)[1:]:
            value.zero_()
    same(compiled, model, x)


def test_weights_that_are_tied() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    compiled = frozen(model)
    same(compiled, model, torch.randn(4, 6))
    with torch.no_grad():
        model[0].weight.neg_()
    same(compiled, model, torch.randn(4, 6))


def test_models_in_channels_last_keep_the_strides_of_their_outputs() -> None:
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU()).to(memory_format=torch.channels_last)
    compiled = frozen(model)
    with torch.no_grad():
        assert compiled(IMAGE).stride() == model(IMAGE).stride()
    same(compiled, model, IMAGE)


class Noisy(nn.Module):
    """Draws random numbers shaped like a weight, which are others in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x) + torch.rand_like(self.convolution.bias).view(1, 8, 1, 1)


def test_random_numbers_are_not_constants() -> None:
    compiled = frozen(Noisy())
    with torch.no_grad():
        compiled(IMAGE)
        assert not torch.equal(compiled(IMAGE), compiled(IMAGE))


@pytest.mark.gives_way
def test_a_failure_leaves_the_program_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from frx_graph.compiler import eager

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(eager, "fold_norms", broken)
    model = network()
    compiled = frozen(model)
    with pytest.warns(RuntimeWarning, match="a bug"), torch.no_grad():
        compiled(IMAGE)
    same(compiled, model, IMAGE)


@pytest.mark.gives_way
@pytest.mark.parametrize("broken", ["freeze_weights", "fold_norms", "rewrite_graph", "bind_constants"])
def test_a_failure_on_the_way_leaves_nothing_behind(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from frx_graph.compiler import eager

    whole, calls = getattr(eager, broken), []

    def fails(*args: object, **how: object) -> object:
        done = whole(*args, **how)
        calls.append(broken)
        if len(calls) == 1:
            raise ZeroDivisionError("a bug")
        return done

    monkeypatch.setattr(eager, broken, fails)
    model = network()
    compiled = frozen(model)
    with pytest.warns(RuntimeWarning, match="a bug"):
        same(compiled, model, IMAGE)
    same(compiled, model, torch.randn(2, 8, 12, 12))
    # It is rewritten without constants instead.
    assert "folded_norms" not in applied()
    assert applied()


def test_other_modes_are_frozen_for_themselves() -> None:
    model = network()
    compiled = frozen(model)
    for on in (False, True):
        backend.clear()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=on):
            torch.testing.assert_close(compiled(IMAGE), model(IMAGE), rtol=3e-2, atol=3e-2)
        assert "folded_norms" in applied()


class Middle(nn.Module):
    """Its weight may be written in a call before it is read."""

    def __init__(self, *, broken: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.broken = broken

    def forward(self, x: Tensor, write: bool) -> Tensor:
        if x.shape[1] > 8:
            raise ValueError("too wide")
        if write:
            self.linear.weight.mul_(2)
        if self.broken:
            torch._dynamo.graph_break()
        return self.linear(x)


FREEZING = pytest.mark.parametrize("options", [{}, {"plan": "all", "inner": "eager"}], ids=["inductor", "eager"])


@pytest.mark.integration
@FREEZING
@pytest.mark.parametrize("broken", [False, True])
def test_a_weight_that_is_written_in_the_call_that_reads_it(options: dict[str, str], broken: bool) -> None:
    model = Middle(broken=broken).eval()
    twin = copy.deepcopy(model)
    compiled = frx_graph.compile(model, options={"freeze": True, **options})
    x = torch.randn(2, 8)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for write in (False, True, False, True):
            torch.testing.assert_close(compiled(x, write), twin(x, write), rtol=1e-4, atol=1e-5)
    assert any("not captured in one graph" in str(warning.message) for warning in caught) == broken


@FREEZING
def test_programs_that_are_compiled_meanwhile_are_not_frozen(options: dict[str, str]) -> None:
    teacher = nn.Linear(8, 8).eval()
    compiled_teacher = torch.compile(teacher)

    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return torch._dynamo.disable(lambda y: compiled_teacher(y))(self.linear(x))

    compiled = frx_graph.compile(Student().eval(), options={"freeze": True, **options})
    x = torch.randn(2, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(x)
        teacher.weight.mul_(2)
        torch.testing.assert_close(compiled_teacher(x), teacher(x))


TEACHERS: list[Callable[[Tensor], Tensor]] = []


@torch.library.custom_op("frx_test::taught", mutates_args=())
def taught(x: Tensor) -> Tensor:
    return TEACHERS[0](x).clone()


@taught.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@FREEZING
def test_nor_are_programs_that_an_operator_compiles(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    freezing: list[bool] = []

    def noting(dynamo: fx.GraphModule, _inputs: object) -> Callable[..., object]:
        freezing.append(inductor_config.freezing)
        return dynamo.forward

    monkeypatch.setitem(globals(), "TEACHERS", [torch.compile(nn.Linear(8, 8).eval(), backend=noting)])

    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return taught(self.linear(x))

    compiled = frx_graph.compile(Student().eval(), options={"freeze": True, **options})
    with torch.no_grad():
        compiled(torch.randn(2, 8))
    assert freezing
    assert not any(freezing)


@FREEZING
def test_changed_weight_does_not_recompile_the_program(options: dict[str, str]) -> None:
    model = nn.Linear(8, 8).eval()
    compiled = frx_graph.compile(model, options={"freeze": True, **options})
    x = torch.randn(2, 8)
    with torch.no_grad():
        compiled(x)
        model.weight.mul_(2)
        with torch.compiler.set_stance("fail_on_recompile"):
            torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(compiled(x), model(x))


@torch._dynamo.disable
def double(module: nn.Module, _args: object) -> None:
    module.weight.mul_(2)


@FREEZING
def test_a_weight_that_a_hook_writes(options: dict[str, str]) -> None:
    model = nn.Linear(8, 8).eval()
    compiled = frx_graph.compile(model, options={"freeze": True, **options})
    x = torch.randn(2, 8)
    with torch.no_grad():
        compiled(x)
        model.register_forward_pre_hook(double)
        for _ in range(3):
            twin = copy.deepcopy(model)
            torch.testing.assert_close(compiled(x), twin(x), rtol=1e-4, atol=1e-5)


@pytest.mark.integration
def test_what_is_called_with_the_model_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Unregistered()
    compiled = frozen(model)
    same(compiled, model, IMAGE)
    monkeypatch.setattr(Unregistered, "forward", lambda self, x: x * 3)
    same(compiled, model, IMAGE)
    model.register_forward_hook(lambda _module, _args, result: result * 5)
    same(compiled, model, IMAGE)


def test_program_error_does_not_end_the_freezing() -> None:
    compiled = frozen(Middle(broken=False))
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled(torch.randn(2, 8), False)
        with pytest.raises(ValueError, match="too wide"):
            compiled(torch.randn(2, 9), False)
        compiled(torch.randn(2, 8), False)
    assert not any("not frozen" in str(warning.message) for warning in caught)


class Listing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(0)
        return self.linear(x)


def test_a_call_that_dynamo_leaves_to_eager_runs_once_and_does_not_end_the_freezing() -> None:
    model = Listing()
    compiled = frozen(model)
    x = torch.randn(2, 8)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = compiled(x)
        for left in (torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False)):
            with left:
                torch.testing.assert_close(compiled(x), expected)
    assert len(model.seen) == 3
    assert not any("not frozen" in str(warning.message) for warning in caught)
