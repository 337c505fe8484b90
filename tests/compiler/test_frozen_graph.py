"""A graph whose weights are constants: computed so for as long as they are what they were, and not a call longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from frx_graph.compiler.inner_compiler import make_planned_backend
from frx_graph.compiler.plans import make_current_plan, make_proposing_plan, make_recorded_plan
from frx_graph.compiler.rewrite_log import LOG
from frx_graph.options import BackendOptions
from frx_graph.records import Candidate

CHOICES = {name: Candidate("inner_choice", "", (), (name,)) for name in ("freezing", "eager_freezing")}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).relu().mean((2, 3)))


class Compiler:
    """A backend with frozen weights; `frozen` counts the calls of what it compiles, `alone` those that something else
    computes."""

    def __init__(self, name: str) -> None:
        self.frozen = self.calls = 0
        self.failures: list[Exception] = []
        plan = make_proposing_plan(make_current_plan("all").rewrites, (CHOICES[name],)) if "eager" in name else None
        plan = plan or make_recorded_plan((CHOICES[name],))
        self._backend = make_planned_backend(BackendOptions(), plan, self.failures.append)

    def __call__(self, dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        program = self._backend(dynamo, inputs)
        compiled = getattr(program, "_frozen", None)

        def counted(*args: Any) -> Any:
            self.frozen += 1
            return compiled(*args)

        if compiled is not None:
            program._frozen = counted

        def run(*args: Any) -> Any:
            self.calls += 1
            return program(*args)

        return run


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    LOG.clear()
    yield
    torch._dynamo.reset()
    LOG.clear()


@pytest.fixture(params=[pytest.param("freezing", marks=pytest.mark.integration), "eager_freezing"])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    return Compiler(request.param)


def model() -> Net:
    torch.manual_seed(0)
    made = Net()
    for _ in range(3):
        made(torch.randn(2, 8, 6, 6))
    return made.eval()


X = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(1))


def same(compiled: Any, program: nn.Module, x: Tensor = X) -> None:
    expected = program(x)
    found = compiled(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found.stride() == expected.stride()


@torch.no_grad()
def test_weights_become_constants_and_are_reported(compiler: Compiler) -> None:
    program = model()
    compiled = torch.compile(program, backend=compiler)
    for _ in range(3):
        same(compiled, program)
    assert (compiler.frozen, compiler.calls, compiler.failures) == (3, 3, [])
    assert LOG.read_all()[-1].applied[0].rewrite == "inner_choice"
    # Packed, or folded, or computed as they are: nothing reads the parameters any more.
    assert all(choice.choices[0] in CHOICES for choice in LOG.read_all()[-1].applied)


def write(program: Net) -> None:
    program.first.weight.mul_(2)


def write_buffer(program: Net) -> None:
    program.norm.running_mean.add_(1)


def other_memory(program: Net) -> None:
    program.first.weight.data = program.first.weight.data * 2


def through_data(program: Net) -> None:
    program.last.weight.data.mul_(2)


def load(program: Net) -> None:
    program.load_state_dict({name: value * 2 for name, value in program.state_dict().items()})


def another_parameter(program: Net) -> None:
    program.first.weight = nn.Parameter(program.first.weight * 2)


@pytest.mark.parametrize("change", [write, write_buffer, other_memory, through_data, load, another_parameter])
@torch.no_grad()
def test_a_weight_that_changes_is_seen_in_the_next_call(compiler: Compiler, change: Callable[[Net], None]) -> None:
    program = model()
    compiled = torch.compile(program, backend=compiler)
    same(compiled, program)
    change(program)
    for _ in range(2):
        same(compiled, program)
    assert compiler.failures == []


@torch.no_grad()
def test_another_instance_that_the_program_serves_has_its_own_weights(compiler: Compiler) -> None:
    """Dynamo takes what it has compiled for another module of the same kind."""
    first, second = model(), model()
    for parameter in second.parameters():
        parameter.mul_(1.5)

    def run(program: nn.Module, x: Tensor) -> Tensor:
        return program(x)

    compiled = torch.compile(run, backend=compiler)
    for _ in range(2):
        for program in (first, second):
            same(lambda x, program=program: compiled(program, x), program)


@torch.no_grad()
def test_a_program_in_training_mode_writes_its_statistics(compiler: Compiler) -> None:
    program, other = model().train(), model().train()
    compiled = torch.compile(program, backend=compiler)
    for _ in range(3):
        same(compiled, other)
    torch.testing.assert_close(program.norm.running_mean, other.norm.running_mean)
    assert torch.equal(program.norm.num_batches_tracked, other.norm.num_batches_tracked)


@torch.no_grad()
@pytest.mark.integration
def test_sizes_that_change(compiler: Compiler) -> None:
    program = model()
    compiled = torch.compile(program, backend=compiler, dynamic=True)
    for size in (6, 7, 9):
        same(compiled, program, torch.randn(2, 8, size, size))


@torch.no_grad()
def test_a_graph_without_weights_is_compiled_as_without_us(compiler: Compiler) -> None:
    compiled = torch.compile(lambda x: x.relu() @ x, backend=compiler)
    x = torch.randn(3, 3)
    torch.testing.assert_close(compiled(x), x.relu() @ x)
    assert [str(error) for error in compiler.failures] == ["the graph reads no weights"]


@torch.no_grad()
def test_a_weight_that_is_returned_is_the_users(compiler: Compiler) -> None:
    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x @ self.weight, self.weight.t()

    program = Returning()
    compiled = torch.compile(program, backend=compiler)
    for _ in range(2):
        product, weight = compiled(torch.ones(2, 3))
        torch.testing.assert_close(product, torch.ones(2, 3) @ program.weight)
        assert weight.data_ptr() == program.weight.data_ptr()
        assert weight.stride() == (1, 3)


def test_weights_without_a_version_counter_are_not_frozen(compiler: Compiler) -> None:
    with torch.inference_mode():
        program = model()
        compiled = torch.compile(program, backend=compiler)
        for _ in range(2):
            same(compiled, program)
            program.first.weight.mul_(2)
    assert compiler.frozen == 0
    assert "inference mode" in str(compiler.failures[0])


@torch.no_grad()
def test_what_a_compiler_does_not_take_is_compiled_as_without_us(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("frx_graph.compiler.inner_compiler.FrozenGraph", fails)
    program, compiler = model(), Compiler("freezing")
    same(torch.compile(program, backend=compiler), program)
    assert [str(error) for error in compiler.failures] == ["no such kernel"]


class WithNumber(nn.Module):
    """With sizes that may change its `eps` is a number that Dynamo traces; no operator takes it so, and Dynamo begins
    once more when it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3)
        self.norm = nn.LayerNorm([8, 4, 4])

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.first(x))
        return normed


@pytest.mark.integration
def test_a_frame_that_dynamo_begins_again() -> None:
    compiler = Compiler("eager_freezing")
    model = WithNumber().eval()
    compiled = torch.compile(model, backend=compiler, dynamic=True)
    with torch.no_grad():
        for batch in (3, 5):
            x = torch.randn(batch, 8, 6, 6)
            torch.testing.assert_close(compiled(x), model(x))
    assert compiler.failures == []
    assert compiler.frozen == compiler.calls == 2
