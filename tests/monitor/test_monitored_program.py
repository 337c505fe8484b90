"""A promoted program is watched: what turns out to be worse than the baseline is gone from the next call on."""

from __future__ import annotations

import gc
import math
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from watched_backend import Machine, Watch, leaking, taking

from frx_graph.capture.graph_signature import is_repeatable
from frx_graph.compiler.fallback import LazyBaseline
from frx_graph.monitor.health_signals import CHECK_STEPS, PromisedTimes, Signal, find_next_check
from frx_graph.monitor.monitored_program import MonitoredProgram, State
from frx_graph.trials.policy import TrialPolicy

INNER = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.integration)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.first(x)).relu().mean()


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def doubled(x: Tensor) -> Tensor:
    return x * 2


def run(watch: Watch, steps: int, program: Callable[..., Any] = doubled) -> None:
    compiled = torch.compile(program, backend=watch)
    for i in range(steps):
        x = torch.full((4,), float(i))
        torch.testing.assert_close(compiled(x), x * 2, rtol=0, atol=0)


def test_what_keeps_its_promise_stays_and_the_baseline_is_never_compiled() -> None:
    watch = Watch(taking(lambda step: 0.5), promise=lambda: PromisedTimes(1.0, 0.5))
    run(watch, 20 * CHECK_STEPS)
    assert watch.reasons == []
    assert watch.steps == {"planned": 20 * CHECK_STEPS, "baseline": 0}


def test_plan_that_becomes_slower_than_the_baseline_is_rolled_back() -> None:
    watch = Watch(taking(lambda step: 0.5 if step < 10 * CHECK_STEPS else 1.2), promise=lambda: PromisedTimes(1.0, 0.5))
    run(watch, 30 * CHECK_STEPS)
    (reason,) = watch.reasons
    assert reason.startswith("its steps take 1.200 times as long as the baseline's")
    before = watch.steps["planned"]
    assert before < 13 * CHECK_STEPS
    assert watch.steps["baseline"] > 15 * CHECK_STEPS


def test_plan_that_is_slow_from_the_start_is_rolled_back() -> None:
    watch = Watch(taking(lambda step: 1.2), promise=lambda: PromisedTimes(1.0, 0.5))
    run(watch, 12 * CHECK_STEPS)
    assert len(watch.reasons) == 1


def test_when_the_machine_becomes_slower_the_plan_stays() -> None:
    watch = Watch(taking(lambda step: 0.5 if step < 10 * CHECK_STEPS else 1.2), promise=lambda: PromisedTimes(1.0, 0.5))
    watch.baseline_seconds = 2.0
    run(watch, 60 * CHECK_STEPS)
    assert watch.reasons == []
    # It was measured, some quads long, and what was found is usual from then on.
    assert 10 < watch.steps["baseline"] < 4 * CHECK_STEPS


def test_a_canary_when_it_is_due() -> None:
    policy = TrialPolicy(steps_per_block=2, canary_interval_steps=100)
    watch = Watch(taking(lambda step: 0.5), policy=policy)
    run(watch, 40 * CHECK_STEPS)
    assert watch.reasons == []
    # A step that both compute, three to warm up, one quad.
    canaries = watch.steps["baseline"] / 8
    assert canaries == int(canaries)
    assert 5 <= canaries <= 40 * CHECK_STEPS / 100


def test_canary_detects_a_broken_promise() -> None:
    watch = Watch(taking(lambda step: 1.1), policy=TrialPolicy(steps_per_block=2, canary_interval_steps=100))
    run(watch, 20 * CHECK_STEPS)
    assert len(watch.reasons) == 1


def nan_from(step: int) -> Callable[..., Any]:
    def planned(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        steps = 0

        def run(*args: Any) -> Any:
            nonlocal steps
            steps += 1
            (result,) = right(*args)
            return (torch.where(torch.arange(result.numel()) == 1, math.nan, result) if steps >= step else result,)

        return run

    return planned


def test_results_that_are_not_finite_are_never_returned_where_they_are_seen() -> None:
    watch = Watch(nan_from(1))
    run(watch, 5)
    assert watch.reasons == ["its results are not finite where the baseline's are"]
    assert watch.steps["planned"] == 1


def test_a_plan_that_was_given_up_never_comes_back() -> None:
    watch = Watch(nan_from(1))
    compiled = torch.compile(doubled, backend=watch)
    x = torch.ones(4)
    compiled(x)
    (program,) = watch.programs
    assert program.state is State.BASELINE
    for enter in (program._resume, lambda: program._measure(Signal.SLOW)):
        enter()
        compiled(x)
        assert program.state is State.BASELINE
    assert not program._canary.is_measuring
    assert watch.steps == {"planned": 1, "baseline": 3}


def test_non_finite_baseline_result_is_not_blamed_on_the_plan() -> None:
    watch = Watch(taking(lambda step: 0.5))
    compiled = torch.compile(doubled, backend=watch)
    for _ in range(40 * CHECK_STEPS):
        assert compiled(torch.tensor([math.inf])).item() == math.inf
    assert watch.reasons == []
    # Each time twice as long until it is looked at again.
    assert watch.steps["baseline"] < 10


def test_a_step_that_writes_into_its_inputs_is_compared_at_the_next_call() -> None:
    def add(x: Tensor) -> Tensor:
        x += 1
        return x * 2

    def nan(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        return lambda x: [result * math.nan for result in right(x)]

    watch = Watch(nan)
    compiled = torch.compile(add, backend=watch)
    x = torch.zeros(4)[1:3]
    compiled(x)
    compiled(x)
    assert watch.reasons == ["its results are not finite where the baseline's are"]
    torch.testing.assert_close(compiled(x), torch.full((2,), 6.0))
    assert x.tolist() == [3.0, 3.0]


@pytest.mark.integration
@pytest.mark.parametrize("inner", INNER)
def test_after_going_back_a_training_step_is_the_baselines_bit_for_bit(inner: str) -> None:
    def wrong(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        return lambda *args: tuple(value * 3 if value.dim() == 0 else value for value in right(*args))

    policy = TrialPolicy(steps_per_block=2, canary_interval_steps=4)
    watch = Watch(wrong, inner=inner, train=True, policy=policy)

    def trained(backend: Any, steps: int) -> tuple[list[Tensor], Net]:
        torch._dynamo.reset()
        model = Net()
        compiled = torch.compile(model, backend=backend)
        losses = []
        torch.manual_seed(1)
        for _ in range(steps):
            x = torch.randn(2, 3, 8, 8)
            model.zero_grad()
            loss = compiled(x)
            loss.backward()
            losses.append(loss.detach())
        return losses, model

    watched_losses, watched_model = trained(watch, 24)
    assert len(watch.reasons) == 1
    assert "differ" in watch.reasons[0]
    losses, model = trained(inner, 24)
    # From the step that was compared on.
    late = slice(watch.steps["planned"], None)
    assert len(losses[late]) > 10
    assert all(map(torch.equal, watched_losses[late], losses[late]))
    for ours, theirs in zip(watched_model.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
        assert ours.grad.stride() == theirs.grad.stride()
    for ours, theirs in zip(watched_model.buffers(), model.buffers(), strict=True):
        assert torch.equal(ours, theirs)


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * math.nan


def test_gradients_that_are_not_finite() -> None:
    def nan(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        return lambda *args: tuple(Wrong.apply(value) for value in right(*args))

    watch = Watch(nan, train=True)
    compiled = torch.compile(lambda x: (x**2).sum(), backend=watch)
    steps = 0
    while not watch.reasons and steps < 5:
        steps += 1
        x = torch.ones(3, requires_grad=True)
        compiled(x).backward()
    assert watch.reasons == ["its gradients are not finite, the baseline's are"]
    x = torch.ones(3, requires_grad=True)
    compiled(x).backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_gradients_that_the_users_scaler_makes_infinite_are_the_users() -> None:
    watch = Watch(taking(lambda step: 0.5), train=True)
    compiled = torch.compile(lambda x: (x**2).sum(), backend=watch)
    for _ in range(2 * CHECK_STEPS):
        x = torch.ones(3, requires_grad=True)
        (compiled(x) * math.inf).backward()
        assert x.grad.tolist() == [math.inf] * 3
    assert watch.reasons == []


def test_loss_that_grows_in_the_baseline_is_not_blamed_on_the_plan() -> None:
    watch = Watch(taking(lambda step: 0.5))
    compiled = torch.compile(lambda x: (x**2).sum(), backend=watch)
    for step in range(6 * CHECK_STEPS):
        compiled(torch.full((3,), 1.0 + step))
    assert watch.reasons == []
    assert 1 <= watch.steps["baseline"] < 8


def test_a_loss_that_the_plan_makes_grow_is_not() -> None:
    def growing(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            run.scale *= 1.1
            return tuple(value * run.scale for value in right(*args))

        run.scale = 1.0  # type: ignore[attr-defined]
        return run

    watch = Watch(growing)
    compiled = torch.compile(lambda x: (x**2).sum(), backend=watch)
    for _ in range(CHECK_STEPS + 2):
        compiled(torch.ones(3))
    (reason,) = watch.reasons
    assert "differ" in reason


def test_frames_that_are_compiled_again_in_its_steps_alone() -> None:
    def compiling(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            machine.frames += 1
            return right(*args)

        return run

    watch = Watch(compiling)
    run(watch, 2 * CHECK_STEPS)
    (reason,) = watch.reasons
    assert "compiled again" in reason


def test_frames_that_are_compiled_in_any_case_are_the_users() -> None:
    watch = Watch(taking(lambda step: 0.5))
    compiled = torch.compile(doubled, backend=watch)
    for _ in range(8 * CHECK_STEPS):
        watch.machine.frames += 1
        compiled(torch.ones(3))
    assert watch.reasons == []


def test_memory_that_grows_in_its_steps_alone() -> None:
    watch = Watch(leaking)
    run(watch, 8 * CHECK_STEPS)
    (reason,) = watch.reasons
    assert reason.startswith("memory grew by ")


def test_memory_that_grows_in_any_case_is_the_users() -> None:
    watch = Watch(taking(lambda step: 0.5))
    compiled = torch.compile(doubled, backend=watch)
    for _ in range(8 * CHECK_STEPS):
        watch.machine.held += 8 * 2**20
        compiled(torch.ones(3))
    assert watch.reasons == []


def failing_at(step: int) -> Callable[..., Any]:
    def planned(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        steps = 0

        def run(*args: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == step:
                raise ValueError("a kernel refuses")
            return right(*args)

        return run

    return planned


def test_a_failure_that_the_baseline_does_not_have_is_not_the_users() -> None:
    watch = Watch(failing_at(3))
    run(watch, 5)
    assert watch.reasons == ["it failed where the baseline does not: ValueError: a kernel refuses"]


def test_a_failure_of_both_is_the_baselines() -> None:
    watch = Watch(taking(lambda step: 0.5))
    compiled = torch.compile(lambda x, i: x[i], backend=watch)
    assert compiled(torch.arange(3), torch.tensor([1])).item() == 1
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(torch.arange(3), torch.tensor([7]))
    assert compiled(torch.arange(3), torch.tensor([2])).item() == 2
    assert watch.reasons == []
    assert watch.steps["planned"] == 3


@pytest.mark.integration
def test_sizes_that_change_have_a_baseline_for_all_of_them() -> None:
    watch = Watch(nan_from(1), inner="inductor")
    compiled = torch.compile(doubled, backend=watch, dynamic=True)
    for size in (2, 3, 5, 7, 9):
        x = torch.arange(float(size))
        torch.testing.assert_close(compiled(x), x * 2)
    assert len(watch.reasons) == 1


def test_many_threads() -> None:
    watch = Watch(taking(lambda step: 0.5), policy=TrialPolicy(steps_per_block=2, canary_interval_steps=40))
    compiled = torch.compile(doubled, backend=watch)
    compiled(torch.ones(4))
    wrong: list[Tensor] = []

    def work() -> None:
        for i in range(300):
            x = torch.full((4,), float(i))
            if not torch.equal(compiled(x), x * 2):
                wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_nothing_of_a_call_is_kept_alive() -> None:
    watch = Watch(taking(lambda step: 0.5), train=True)
    compiled = torch.compile(lambda x: (x**2).sum(), backend=watch)
    x = torch.ones(3, requires_grad=True)
    gone = weakref.ref(x)
    compiled(x).backward()
    del x
    gc.collect()
    assert gone() is None


def test_operators_of_others_are_never_computed_twice() -> None:
    calls = []

    @torch.library.custom_op("frx_watched::counted", mutates_args=())
    def counted(x: Tensor) -> Tensor:
        calls.append(x)
        return x.clone()

    counted.register_fake(lambda x: x.clone())
    graphs: list[fx.GraphModule] = []

    def noting(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(dynamo)
        return dynamo.forward

    torch.compile(lambda x: counted(x) * 2, backend=noting)(torch.ones(2))
    torch.compile(doubled, backend=noting)(torch.ones(2))
    assert list(map(is_repeatable, graphs)) == [False, True]
    torch._dynamo.reset()
    calls.clear()
    policy = TrialPolicy(steps_per_block=2, canary_interval_steps=16)
    watch = Watch(nan_from(1), repeatable=False, policy=policy)
    compiled = torch.compile(lambda x: counted(x) * 2, backend=watch)
    for _ in range(64):
        compiled(torch.ones(2))
    assert len(calls) == 64
    assert watch.steps["baseline"] > 5


def test_a_failure_of_the_users_own_in_a_step_that_both_compute_is_over_with_that_step() -> None:
    watch = Watch(taking(lambda step: 0.5), policy=TrialPolicy(steps_per_block=2, canary_interval_steps=1))
    compiled = torch.compile(lambda x, i: x[i], backend=watch)
    good, bad = torch.tensor([1]), torch.tensor([7])
    for step in range(60):
        if step % 3 == 1:
            with pytest.raises(IndexError, match="out of bounds"):
                compiled(torch.arange(3), bad)
        else:
            assert compiled(torch.arange(3), good).item() == 1
    assert watch.reasons == []
    assert watch.steps["baseline"] > 5


def test_a_failure_of_the_plans_in_its_turn_is_not_the_users() -> None:
    watch = Watch(failing_at(8), policy=TrialPolicy(steps_per_block=2, canary_interval_steps=1))
    run(watch, 40)
    assert watch.reasons == ["it failed where the baseline does not: ValueError: a kernel refuses"]


def test_fake_tensor_call_is_not_a_step() -> None:
    programs: list[MonitoredProgram] = []

    def noting(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        programs.append(Watch(nan_from(4))(dynamo, inputs))
        return dynamo.forward

    torch.compile(doubled, backend=noting)(torch.ones(2))
    (program,) = programs
    mode = FakeTensorMode()
    for _ in range(3):
        (made,) = program(mode.from_tensor(torch.ones(2)))
        assert isinstance(made, FakeTensor)
    assert program._steps == 0
    # The first step of the program is the fourth call, and is looked at.
    (made,) = program(torch.ones(2))
    assert made.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("inner", INNER)
def test_in_inference_mode_nothing_is_written_twice(inner: str) -> None:
    def add(x: Tensor, cache: Tensor) -> Tensor:
        cache.add_(1)
        return x + cache

    watch = Watch(nan_from(1), inner=inner, policy=TrialPolicy(steps_per_block=2, canary_interval_steps=2))
    with torch.inference_mode():
        cache = torch.zeros(2)
        compiled = torch.compile(add, backend=watch)
        for _ in range(40):
            compiled(torch.ones(2), cache)
    assert cache.tolist() == [40.0, 40.0]
    assert watch.reasons == []


def test_memory_that_both_need_together_is_not_the_users_failure() -> None:
    def failing(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        return right

    watch = Watch(failing, policy=TrialPolicy(steps_per_block=2, canary_interval_steps=4))
    compiled = torch.compile(doubled, backend=watch)
    compiled(torch.ones(4))
    (program,) = watch.programs
    program.pair.baseline._compiled = out_of_memory
    for i in range(20):
        x = torch.full((4,), float(i))
        assert torch.equal(compiled(x), x * 2)
    assert watch.reasons == []


def out_of_memory(*_args: Any) -> Any:
    raise torch.OutOfMemoryError("a test")


def test_what_no_backward_follows_is_let_go_at_the_next_call() -> None:
    alive: list[weakref.ref[Tensor]] = []

    def noting(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            results = right(*args)
            alive.extend(weakref.ref(result) for result in results)
            return results

        return run

    watch = Watch(noting, train=True, policy=TrialPolicy(steps_per_block=2, canary_interval_steps=4))
    compiled = torch.compile(lambda x: (x**2).sum(), backend=watch)
    for _ in range(40):
        compiled(torch.ones(3, requires_grad=True))
    gc.collect()
    assert watch.steps["baseline"] > 0
    assert [ref for ref in alive if ref() is not None] == []


def test_nan_beside_an_infinity_that_is_meant() -> None:
    def masked(x: Tensor) -> Tensor:
        return torch.where(torch.arange(4) == 0, -math.inf, x)

    def nan(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        return lambda *args: [torch.where(torch.arange(4) == 3, math.nan, value) for value in right(*args)]

    watch = Watch(nan)
    compiled = torch.compile(masked, backend=watch)
    assert compiled(torch.ones(4)).tolist() == [-math.inf, 1.0, 1.0, 1.0]
    assert watch.reasons == ["its results are not finite where the baseline's are"]


def test_what_is_rolled_back_for_another_program_of_the_graph_goes_at_the_next_look() -> None:
    gone = [False]
    watch = Watch(taking(lambda step: 0.5), is_withdrawn=lambda: gone[0])
    compiled = torch.compile(doubled, backend=watch)
    for _ in range(CHECK_STEPS):
        compiled(torch.ones(2))
    gone[0] = True
    for _ in range(2 * CHECK_STEPS):
        compiled(torch.ones(2))
    assert watch.steps == {"planned": 2 * CHECK_STEPS, "baseline": CHECK_STEPS}
    assert watch.reasons == []


def test_a_baseline_with_sizes_that_depend_on_data_is_compiled_at_once() -> None:
    compiled_for: list[Any] = []

    def inner(graph: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        compiled_for.append(torch._guards.TracingContext.try_get())
        return graph.forward

    def backend(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        kept = LazyBaseline(dynamo, inputs, inner)
        return lambda *args: kept.get_program(args)(*args)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(lambda x: x[x > 0].sum(), backend=backend, fullgraph=True)
        assert compiled(torch.tensor([1.0, -1.0, 2.0])).item() == 3.0
    assert compiled_for != [None]


def test_baseline_that_fails_to_compile_runs_in_eager_with_a_warning() -> None:
    def inner(graph: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        raise ValueError("not now")

    def backend(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        kept = LazyBaseline(dynamo, inputs, inner)
        return lambda *args: kept.get_program(args)(*args)

    with pytest.warns(RuntimeWarning, match="not now.*eager runs it"):
        assert torch.compile(doubled, backend=backend)(torch.ones(2)).tolist() == [2.0, 2.0]


def nan_at(step: int) -> Callable[..., Any]:
    def planned(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        steps = 0

        def run(*args: Any) -> Any:
            nonlocal steps
            steps += 1
            results = right(*args)
            return [result * math.nan for result in results] if steps == step else results

        return run

    return planned


def failing_after_its_work_at(step: int) -> Callable[..., Any]:
    def planned(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        steps = 0

        def run(*args: Any) -> Any:
            nonlocal steps
            steps += 1
            results = right(*args)
            if steps == step:
                raise ValueError("a kernel refuses")
            return results

        return run

    return planned


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize(
    "planned",
    [nan_at(1), nan_at(4), failing_after_its_work_at(1), failing_after_its_work_at(3)],
    ids=["not finite at first", "not finite", "failing at first", "failing"],
)
def test_random_numbers_are_drawn_as_without_us(inner: str, planned: Callable[..., Any]) -> None:
    def drawn(backend: Any) -> list[Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        compiled = torch.compile(lambda x: nn.functional.dropout(x, 0.5) + 1, backend=backend)
        return [value for _ in range(6) for value in (compiled(torch.ones(64)), torch.rand(4))]

    watch = Watch(planned, inner=inner)
    found, expected = drawn(watch), drawn(inner)
    assert len(watch.reasons) == 1
    assert watch.steps["baseline"] > 0
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("inner", INNER)
def test_a_baseline_that_fails_in_its_turn_has_drawn_nothing(inner: str) -> None:
    def drawn(backend: Any) -> list[Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        compiled = torch.compile(lambda x: nn.functional.dropout(x, 0.5) + 1, backend=backend)
        found = []
        for step in range(CHECK_STEPS):
            found += [compiled(torch.ones(64)), torch.rand(4)]
            if step == 0 and isinstance(backend, Watch):
                backend.programs[0].pair.baseline._compiled = drawing_and_failing
        return found

    watch = Watch(lambda right, _: right, inner=inner, policy=TrialPolicy(canary_interval_steps=4, steps_per_block=1))
    found, expected = drawn(watch), drawn(inner)
    assert watch.reasons == []
    assert all(map(torch.equal, found, expected))


def drawing_and_failing(*_args: Any) -> Any:
    torch.rand(7)
    raise torch.OutOfMemoryError("a test")


def test_programs_that_draw_nothing_leave_the_generators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    real = torch.get_rng_state
    monkeypatch.setattr(torch, "get_rng_state", lambda: reads.append(1) or real())
    watch = Watch(lambda right, _: right)
    compiled = torch.compile(doubled, backend=watch)
    x = torch.ones(2)
    for step in range(1, CHECK_STEPS + 1):
        reads.clear()
        compiled(x)
        # Before and after a step that is looked at; the first is compiled, which reads them, too.
        assert len(reads) == 2 * (find_next_check(step - 1) == step) or step == 1


def test_random_numbers_drawn_while_compiling_are_not_taken_from_the_program() -> None:
    def inner(graph: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        torch.rand(3)
        random.random()
        return graph.forward

    kept = LazyBaseline(fx.symbolic_trace(doubled), [torch.ones(2)], inner)
    torch.manual_seed(0)
    random.seed(0)
    kept.get_program([torch.ones(2)])
    found = torch.rand(2), random.random()
    torch.manual_seed(0)
    random.seed(0)
    assert torch.equal(found[0], torch.rand(2))
    assert found[1] == random.random()


def test_a_baseline_is_compiled_later_under_the_configuration_of_the_first_time() -> None:
    seen: list[tuple[Any, ...]] = []

    def inner(graph: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        inductor, dynamo = torch._inductor.config, torch._dynamo.config
        seen.append((inductor.max_fusion_size, inductor.post_grad_custom_pre_pass, dynamo.recompile_limit))
        return graph.forward

    def kept() -> LazyBaseline:
        return LazyBaseline(fx.symbolic_trace(doubled), [torch.ones(2)], inner)

    inner(fx.symbolic_trace(doubled), [])
    default = seen.pop()
    changed = (7, doubled, 3)
    with (
        torch._inductor.config.patch(max_fusion_size=7, post_grad_custom_pre_pass=doubled),
        torch._dynamo.config.patch(recompile_limit=3),
    ):
        inside = kept()
    outside = kept()
    inside.get_program([torch.ones(2)])
    with torch._inductor.config.patch(max_fusion_size=5), torch._dynamo.config.patch(recompile_limit=4):
        outside.get_program([torch.ones(2)])
        assert torch._inductor.config.max_fusion_size == 5
    assert seen == [changed, default]
    inner(fx.symbolic_trace(doubled), [])
    assert seen.pop() == default


def turns(**how: Any) -> Watch:
    """A plan that is right, and measured again after every step."""
    policy = TrialPolicy(canary_interval_steps=1, steps_per_block=1)
    return Watch(lambda right, _: right, policy=policy, train=True, **how)


@pytest.mark.parametrize("inner", INNER)
def test_gradients_of_some_inputs_alone_are_the_users_to_ask_for(inner: str) -> None:
    model, watch = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), turns(inner=inner)
    compiled = torch.compile(model, backend=watch)
    for step in range(CHECK_STEPS * 2):
        x = torch.randn(2, 4, requires_grad=True)
        wanted = [x] if step % 2 else list(model.parameters())
        found = torch.autograd.grad(compiled(x).sum(), wanted)
        torch.testing.assert_close(found, torch.autograd.grad(model(x).sum(), wanted))
    assert not watch.reasons
    assert watch.steps["baseline"] > 0


@pytest.mark.parametrize("inner", INNER)
def test_an_optimizers_step_is_made_once(inner: str) -> None:
    torch.manual_seed(0)
    model, watch = nn.Linear(4, 4), turns(inner=inner)
    watch.how["repeatable"] = False
    optimizer = torch.optim.Adam(model.parameters())
    seen: list[bool] = []

    def backend(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        seen.append(is_repeatable(dynamo))
        return watch(dynamo, inputs)

    step = torch.compile(optimizer.step, backend=backend)
    for count in range(1, 20):
        model(torch.ones(2, 4)).sum().backward()
        step()
        assert optimizer.state[model.weight]["step"] == count
    # Its tensors are the graph's own, where writes into inputs are not seen.
    assert seen
    assert not any(seen)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("forwards", [1, 3])
def test_only_forwards_with_a_backward_each_take_turns(inner: str, forwards: int) -> None:
    torch.manual_seed(0)
    model, watch = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), turns(inner=inner)
    compiled = torch.compile(model, backend=watch)
    for _ in range(CHECK_STEPS):
        sum(compiled(torch.randn(3, 4)).sum() for _ in range(forwards)).backward()
    assert not watch.reasons
    assert (watch.steps["baseline"] > 0) is (forwards == 1)


@pytest.mark.integration
@pytest.mark.parametrize("inner", INNER)
def test_mutated_autograd_input_is_computed_once(inner: str) -> None:
    def program(x: Tensor) -> Tensor:
        x.mul_(2)
        return x.sin().sum()

    watch = turns(inner=inner)
    compiled = torch.compile(program, backend=watch)
    for _ in range(CHECK_STEPS):
        x = torch.randn(4, requires_grad=True)
        compiled(x * 1.0).backward()
        torch.testing.assert_close(x.grad, 2 * (2 * x).cos())
    assert not watch.reasons
