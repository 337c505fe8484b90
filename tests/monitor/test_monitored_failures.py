"""What fails while a promoted program is watched: the plan's, the baseline's, or for the memory that both need."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch._dynamo  # first, or the next import is circular
from torch import Tensor, nn
from torch._functorch._aot_autograd import runtime_wrappers
from torch.utils.checkpoint import checkpoint
from watched_backend import Machine, Watch, leaking, taking

from frx_graph.errors import is_out_of_memory
from frx_graph.monitor import failure_attribution, shadow_run, shadow_steps, step_metrics
from frx_graph.monitor.health_signals import CHECK_STEPS, PromisedTimes
from frx_graph.monitor.monitored_program import MonitoredProgram, State
from frx_graph.monitor.shadow_run import ShadowRun, count_copied_bytes
from frx_graph.monitor.step_metrics import StepMetrics, has_room_twice
from frx_graph.trials.policy import TrialPolicy

INNER = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.integration)]
EVERY_STEP = TrialPolicy(steps_per_block=1, canary_interval_steps=1)
NO_MEMORY = (
    torch.OutOfMemoryError("a test"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
)


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class BackwardCompilerFailed(RuntimeError):
    """As of one of torch's compilers."""

    __module__ = "torch._dynamo.exc"


def failing(error: Exception, at: Callable[[int], bool]) -> Callable[..., Any]:
    """A right program that raises instead of the calls for which `at(step)`."""

    def planned(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        steps = 0

        def run(*args: Any) -> Any:
            nonlocal steps
            steps += 1
            if at(steps):
                raise error
            return right(*args)

        return run

    return planned


def norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


def trained(backend: Any, steps: int, fails: Callable[[int], bool] = lambda step: False) -> list[Tensor]:
    """Buffers and gradients after some steps; `fails` says of which the user gets an error."""
    torch._dynamo.reset()
    model = norm()
    compiled = torch.compile(model, backend=backend)
    torch.manual_seed(1)
    for step in range(1, steps + 1):
        x = torch.randn(3, 4)
        if fails(step):
            with pytest.raises((RuntimeError, MemoryError, ValueError)):
                compiled(x)
        else:
            compiled(x).square().sum().backward()
    return [*model.buffers(), *(parameter.grad for parameter in model.parameters())]


def test_out_of_memory_is_recognized_from_any_source() -> None:
    assert all(map(is_out_of_memory, NO_MEMORY))
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 47, dtype=torch.uint8)
    assert is_out_of_memory(raised.value)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.parametrize("error", NO_MEMORY, ids=["device", "Python", "processor"])
def test_a_plan_for_which_a_comparison_leaves_no_memory_stays(error: Exception) -> None:
    # Every second call is compared.
    watch = Watch(failing(error, lambda step: step == 2), policy=TrialPolicy(canary_interval_steps=1))
    compiled = torch.compile(lambda x: x * 2, backend=watch)
    for i in range(CHECK_STEPS):
        x = torch.full((4,), float(i))
        assert torch.equal(compiled(x), x * 2)
    assert watch.steps["planned"] > 2
    assert watch.reasons == []


@pytest.mark.parametrize("inner", INNER)
def test_a_baseline_without_memory_for_a_comparison_leaves_what_it_has_written_into_as_it_was(inner: str) -> None:
    def no_memory(*args: Any) -> Any:
        args[-1].add_(1)
        for arg in args:
            if isinstance(arg, Tensor) and not arg.requires_grad:
                arg.mul_(3)
        raise NO_MEMORY[0]

    watch = Watch(lambda right, _: right, inner=inner, train=True, policy=EVERY_STEP)

    def backend(*args: Any) -> Any:
        program = watch(*args)
        program.pair.baseline._compiled = no_memory
        return program

    found = trained_without_input(backend, 2)
    assert watch.steps == {"planned": 2, "baseline": 0}
    assert watch.reasons == []
    assert all(map(torch.equal, found, trained_without_input("aot_eager" if inner == "eager" else inner, 2)))


def trained_without_input(backend: Any, steps: int) -> list[Tensor]:
    """As `trained`, of a program whose only inputs without gradients are its buffers."""
    torch._dynamo.reset()
    model = norm()
    x = torch.randn(3, 4, requires_grad=True)
    compiled = torch.compile(model, backend=backend)
    for _ in range(steps):
        compiled(x).square().sum().backward()
    return [*model.buffers(), *(parameter.grad for parameter in model.parameters())]


def test_comparison_is_skipped_with_one_warning_if_memory_is_short() -> None:
    watch = Watch(taking(lambda step: 0.5), train=True)
    watch.machine.roomy = False
    compiled = torch.compile(lambda x: (x**2).sum(), backend=watch)
    with pytest.warns(RuntimeWarning, match="gradients are not finite: there is no memory") as told:
        for _ in range(4 * CHECK_STEPS):
            (compiled(torch.ones(3, requires_grad=True)) * math.inf).backward()
    assert len(told) == 1
    assert watch.reasons == []
    assert watch.steps == {"planned": 4 * CHECK_STEPS, "baseline": 0}


def test_memory_that_grows_is_measured_without_taking_more(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[ShadowRun] = []
    monkeypatch.setattr(shadow_steps, "ShadowRun", lambda *args: compared.append(ShadowRun(*args)))

    watch = Watch(leaking)
    compiled = torch.compile(lambda x: x * 2, backend=watch)
    for _ in range(8 * CHECK_STEPS):
        compiled(torch.ones(4))
    assert watch.reasons[0].startswith("memory grew by ")
    assert compared == []


def test_what_a_step_takes_must_be_left_twice() -> None:
    assert has_room_twice(peak_bytes=500, held_bytes=100, left_bytes=900)
    assert not has_room_twice(peak_bytes=500, held_bytes=100, left_bytes=800)
    assert has_room_twice(None, 100, 0)
    assert has_room_twice(500, 100, None)
    assert StepMetrics(torch.device("cpu")).can_fit_twice()


@pytest.mark.parametrize("error", [NO_MEMORY[0], ValueError("a kernel refuses")], ids=["memory", "kernel"])
@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_plan_that_fails_in_a_call_that_writes_is_gone_after_it(step: int, error: Exception) -> None:
    def planned(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        made = failing(error, lambda at: at == step)(right, machine)

        def run(*args: Any) -> Any:
            if watch.steps["planned"] == step:
                # As a program that ends amid its writes.
                next(arg for arg in args if isinstance(arg, Tensor) and arg.dtype == torch.int64).add_(0)
            return made(*args)

        return run

    watch = Watch(planned, train=True)
    found = trained(watch, 8, lambda at: at == step)
    assert watch.reasons == [f"it failed where the baseline does not: {type(error).__name__}: {error}"]
    # On copies, to see whether it fails as well, and all that came after.
    assert watch.steps == {"planned": step, "baseline": 1 + 8 - step}
    assert int(found[2]) == 8 - 1


def test_a_failure_of_the_users_own_in_a_call_that_writes_is_the_users() -> None:
    def program(x: Tensor, i: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return x[i] * count

    watch = Watch(taking(lambda step: 0.5))
    compiled = torch.compile(program, backend=watch)
    count = torch.zeros(())
    for step in range(6):
        if step == 3:
            with pytest.raises(IndexError, match="out of bounds"):
                compiled(torch.ones(3), torch.tensor([7]), count)
        else:
            compiled(torch.ones(3), torch.tensor([1]), count)
    assert watch.reasons == []
    assert watch.steps == {"planned": 6, "baseline": 1}


@pytest.mark.parametrize(("own", "gone"), [(False, True), (True, False)], ids=["the plan's", "the user's"])
def test_a_failure_in_inference_mode(own: bool, gone: bool) -> None:
    error = ValueError("a kernel refuses")
    watch = Watch(failing(error, lambda step: not own and step == 3))
    with torch.inference_mode():
        compiled = torch.compile(lambda x, i: x[i] + 1, backend=watch)
        for step in range(1, 6):
            if step == 3:
                with pytest.raises(IndexError if own else ValueError):
                    compiled(torch.ones(3), torch.tensor([7 if own else 1]))
            else:
                compiled(torch.ones(3), torch.tensor([1]))
    assert bool(watch.reasons) is gone
    assert watch.steps["planned"] == (3 if gone else 5)


def test_unrepeatable_program_is_not_used_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(failing(ValueError("a kernel refuses"), lambda step: step == 3), repeatable=False)
    compiled = torch.compile(lambda x: x * 2, backend=watch)
    for step in range(1, 6):
        if step == 3:
            with pytest.raises(ValueError, match="a kernel refuses"):
                compiled(torch.ones(3))
        else:
            compiled(torch.ones(3))
    assert watch.reasons == [
        "it failed, in a call that cannot be made again by the baseline: ValueError: a kernel refuses"
    ]
    assert watch.steps == {"planned": 3, "baseline": 2}


@pytest.mark.parametrize("error", NO_MEMORY, ids=["device", "Python", "processor"])
def test_possible_out_of_memory_in_an_unrepeatable_call_is_not_recorded(error: Exception) -> None:
    watch = Watch(failing(error, lambda step: step == 3), repeatable=False)
    compiled = torch.compile(lambda x: x * 2, backend=watch)
    for step in range(1, 6):
        if step == 3:
            with pytest.warns(RuntimeWarning, match="may lack memory, too"), pytest.raises(type(error)):
                compiled(torch.ones(3))
        else:
            compiled(torch.ones(3))
    assert watch.reasons == []
    assert watch.steps == {"planned": 3, "baseline": 2}


def test_what_a_device_fails_for_that_does_nothing_any_more_is_nobodys() -> None:
    error = torch.AcceleratorError("device-side assert triggered")
    watch = Watch(failing(error, lambda step: step >= 3), train=True)

    def breaks(step: int) -> bool:
        watch.machine.works = step < 3
        return step >= 3

    trained(watch, 5, breaks)
    assert watch.reasons == []
    assert watch.steps == {"planned": 5, "baseline": 0}


def test_what_a_device_fails_for_in_a_step_of_both_is_nobodys() -> None:
    def breaking(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            machine.works = watch.steps["baseline"] == 0
            if not machine.works:
                raise torch.AcceleratorError("device-side assert triggered")
            return right(*args)

        return run

    watch = Watch(breaking, policy=EVERY_STEP)
    compiled = torch.compile(lambda x: x * 2, backend=watch)
    compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert watch.steps == {"planned": 2, "baseline": 1}
    assert watch.reasons == []


def gather() -> Callable[..., Any]:
    weight = torch.arange(1024.0)
    return lambda x, i: x[i] + weight[i]


def in_inference_mode(watch: Watch, indices: list[int]) -> list[type[Exception] | None]:
    """What comes of requests for an element of three; the first one compiles."""
    compiled = torch.compile(gather(), backend=watch)
    found: list[type[Exception] | None] = []
    with torch.inference_mode():
        for index in indices:
            try:
                compiled(torch.ones(3), torch.tensor([index]))
                found.append(None)
            except Exception as error:  # noqa: BLE001 - what the user would get
                found.append(type(error))
    return found


def test_inputs_that_memory_holds_once_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Any] = []
    monkeypatch.setattr(shadow_run, "_duplicate", lambda arg, **_: copied.append(arg) or arg)
    watch = Watch(lambda right, _: right)
    watch.machine.roomy = False
    with pytest.warns(RuntimeWarning, match="no memory to see whether the baseline fails") as told:
        found = in_inference_mode(watch, [1, 7, 7, 7, 1])
    assert found == [None, IndexError, IndexError, IndexError, None]
    assert copied == []
    assert len(told) == 1
    assert watch.reasons == []
    assert watch.steps == {"planned": 2, "baseline": 3}


def test_out_of_memory_while_copying_does_not_blame_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(arg: Any, **_: Any) -> Any:
        raise NO_MEMORY[0]

    monkeypatch.setattr(shadow_run, "_duplicate", no_memory)
    watch = Watch(lambda right, _: right)
    with pytest.warns(RuntimeWarning, match="no memory to see whether the baseline fails"):
        in_inference_mode(watch, [1, 7])
    assert watch.reasons == []


def test_of_many_bad_requests_few_copy_what_they_are_given() -> None:
    watch = Watch(lambda right, _: right)
    found = in_inference_mode(watch, [1] + 40 * [7] + [1])
    assert found == [None, *(40 * [IndexError]), None]
    assert watch.reasons == []
    # The first, the second, the fourth, and so on, up to the 32nd.
    assert watch.steps == {"planned": 42, "baseline": 6}


def test_sizes_that_are_given_share_no_memory() -> None:
    watch = Watch(lambda right, _: right)
    with torch.inference_mode():
        compiled = torch.compile(lambda x, y, i: (x[i] + x.shape[0], y[i] + y.shape[0]), backend=watch, dynamic=True)
        compiled(torch.ones(3), torch.ones(4), torch.tensor([1]))
        with pytest.raises(IndexError):
            compiled(torch.ones(5), torch.ones(6), torch.tensor([7]))
    assert watch.kinds.count(torch.SymInt) == 2
    assert watch.reasons == []
    assert watch.steps == {"planned": 2, "baseline": 1}


def test_what_is_copied_and_as_much_again_must_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = StepMetrics(torch.device("cpu"))
    memory = torch.ones(8)
    args = (memory[2:4], 7, torch.ones(3))
    assert count_copied_bytes(args, frozenset({0, 1})) == 32
    for left, fits in ((63, False), (64, True), (None, True)):
        monkeypatch.setattr(step_metrics, "get_available_memory", lambda left=left: left)
        assert reading.can_fit(32) is fits
    assert reading.is_device_usable()


def test_what_another_rank_may_have_failed_for_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_attribution.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(failure_attribution.dist, "get_world_size", lambda: 2)
    watch = Watch(failing(RuntimeError("connection closed by peer"), lambda step: True), repeatable=False)
    compiled = torch.compile(lambda x: x * 2, backend=watch)
    with (
        pytest.warns(RuntimeWarning, match="another one may be the reason"),
        pytest.raises(RuntimeError, match="closed by peer"),
    ):
        compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert watch.reasons == []
    assert watch.steps == {"planned": 1, "baseline": 1}


@pytest.mark.parametrize("hooked", [False, True], ids=["plain", "in a checkpoint"])
@pytest.mark.parametrize(
    ("error", "gone", "recorded"),
    [
        (NO_MEMORY[0], True, False),
        (BackwardCompilerFailed("a compiler refuses"), True, True),
        (RuntimeError("a second backward"), False, False),
    ],
    ids=["memory", "compiler", "the user's"],
)
def test_a_backward_that_fails(
    monkeypatch: pytest.MonkeyPatch, error: Exception, gone: bool, recorded: bool, hooked: bool
) -> None:
    watch = Watch(lambda right, _: right, train=True)
    compiled = torch.compile(lambda x: x.sin().sum(), backend=watch)
    real = runtime_wrappers.call_func_at_runtime_with_args

    def step(*, fails: bool = False) -> Tensor:
        x = torch.ones(3, requires_grad=True)
        loss = checkpoint(compiled, x, use_reentrant=False) if hooked else compiled(x)

        def called(program: Any, *args: Any, **how: Any) -> Any:
            if program is type(loss.grad_fn)._forward_cls.compiled_bw:
                raise error
            return real(program, *args, **how)

        with monkeypatch.context() as patched:
            if fails:
                patched.setattr(runtime_wrappers, "call_func_at_runtime_with_args", called)
            loss.backward()
        return x.grad

    expected = torch.ones(3).cos()
    torch.testing.assert_close(step(), expected)
    said = pytest.warns(RuntimeWarning, match="may lack memory, too") if gone and not recorded else nullcontext()
    with said, pytest.raises(RuntimeError, match=str(error)):
        step(fails=True)
    torch.testing.assert_close(step(), expected)
    torch.testing.assert_close(step(), expected)
    assert len(watch.reasons) == recorded
    assert (watch.steps["baseline"] > 0) is gone


@pytest.mark.parametrize(("takes", "gone"), [(1.2, True), (0.5, False)], ids=["slower", "faster"])
def test_in_training_a_promise_that_steps_do_not_show_is_measured_once(takes: float, gone: bool) -> None:
    watch = Watch(taking(lambda step: takes), train=True, promise=lambda: PromisedTimes(1.0, 0.5))
    compiled = torch.compile(lambda x: (x**2).sum(), backend=watch)
    for _ in range(20 * CHECK_STEPS):
        compiled(torch.ones(3, requires_grad=True)).backward()
        # The plan makes them 10 % slower, by more than a process may have as its bias.
        watch.machine.now += 1.0
    assert bool(watch.reasons) is gone
    # Three steps to warm up, one quad.
    assert gone or watch.steps["baseline"] == 3 + 2 * 2


def test_two_programs_of_a_step_are_measured_one_after_the_other() -> None:
    machine = Machine()

    def program(takes: float) -> tuple[Watch, Any]:
        watch = Watch(taking(lambda step: takes), train=True, promise=lambda: PromisedTimes(1.0, 0.5))
        watch.machine = machine
        return watch, torch.compile(lambda x: (x**2).sum() * takes, backend=watch)

    (slow, one), (fast, other) = program(1.2), program(0.1)
    for _ in range(20 * CHECK_STEPS):
        for compiled in (one, other):
            compiled(torch.ones(3, requires_grad=True)).backward()
    # In turn together, they are faster than their baselines together.
    (reason,) = slow.reasons
    assert reason.startswith("its steps take 1.")
    assert fast.reasons == []
    assert fast.steps["baseline"] > 0


def two_programs_one_of_which_is_left_out(steps: int) -> tuple[tuple[Watch, Any], tuple[Watch, Any]]:
    """The first one has taken the place to measure in the middle of `steps`, after which the other's were made."""
    programs = []
    for takes in (0.5, 1.2):
        watch = Watch(taking(lambda step, takes=takes: takes), train=True, promise=lambda: PromisedTimes(0.4, 0.2))
        programs.append((watch, torch.compile(lambda x, takes=takes: (x**2).sum() * takes, backend=watch)))
    first, other = programs
    while not any(map(is_measuring, first[0].programs)):
        trained_by(first)
    for _ in range(steps):
        trained_by(other)
    return first, other


def is_measuring(program: MonitoredProgram) -> bool:
    return program.state is State.CANARY


def trained_by(program: tuple[Watch, Any]) -> None:
    program[1](torch.ones(3, requires_grad=True)).backward()


def test_a_program_that_makes_no_more_steps_gives_up_the_place_to_measure() -> None:
    (slow, _), (other, _) = two_programs_one_of_which_is_left_out(20 * CHECK_STEPS)
    assert is_measuring(slow.programs[0])
    assert slow.reasons == []
    assert other.steps["baseline"] > 0
    (reason,) = other.reasons
    assert reason.startswith("its steps take 1.")


def test_a_program_that_has_lost_the_place_to_measure_measures_later() -> None:
    first, other = two_programs_one_of_which_is_left_out(0)
    while not any(map(is_measuring, other[0].programs)):
        trained_by(other)
    before = first[0].steps["baseline"]
    trained_by(first)
    assert not is_measuring(first[0].programs[0])
    assert first[0].steps["baseline"] == before
    # Its promise is not forgotten.
    while is_measuring(other[0].programs[0]):
        trained_by(other)
    for _ in range(2 * CHECK_STEPS):
        trained_by(first)
    assert first[0].steps["baseline"] > before


def test_what_a_scaler_of_gradients_skips_is_not_the_plans() -> None:
    watch = Watch(taking(lambda step: 0.5), train=True)
    weight = nn.Parameter(torch.ones(3))
    compiled = torch.compile(lambda w: (w.half() * 100).sum().float(), backend=watch)
    optimizer = torch.optim.SGD([weight], lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for _ in range(CHECK_STEPS):
        scaler.scale(compiled(weight)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() < 2.0**12
    assert not torch.equal(weight, torch.ones(3))
    assert watch.reasons == []
    # The first steps, and no more.
    assert 1 <= watch.steps["baseline"] <= 3
