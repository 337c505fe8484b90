import gc
import operator
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

import frx_graph
from frx_graph import backend
from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler import eager, fallback
from frx_graph.compiler.eager import EagerPlan
from frx_graph.compiler.fallback import FallbackState, GuardedGraph, can_rerun
from frx_graph.compiler.plans import make_current_plan
from frx_graph.freezing.constant_folding import FrozenWeights, bind_constants
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate

FAILS = "only running it tells"
BEHIND = {Phase.FORWARD: torch.ops.aten.addmm.default, Phase.BACKWARD: torch.ops.aten.tanh_backward.default}


def fail(value: Tensor) -> Tensor:
    if type(value) is Tensor:
        raise RuntimeError(FAILS)
    return torch.empty_like(value)


def fail_for_seven(value: Tensor) -> Tensor:
    return fail(value) if value.shape[0] == 7 else value.clone()


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("aten", "FRAGMENT") as library:
        library.define("frx_fails(Tensor x) -> Tensor")
        library.impl("frx_fails", torch.empty_like, "Meta")
        yield library


@pytest.fixture
def plant(
    library: torch.library.Library, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Phase, Callable[[Tensor], Tensor]], None]:
    """Let what one operator of a phase makes go through another that fails."""

    def planted(phase: Phase, fails: Callable[[Tensor], Tensor]) -> None:
        library.impl("frx_fails", fails, "CPU")

        def propose(subject: RewriteSubject) -> Iterator[Candidate]:
            if subject.phase is phase:
                yield Candidate("planted", subject.facts.graph_id, ())

        def apply(_subject: RewriteSubject, module: fx.GraphModule, _candidate: Candidate) -> tuple[str, ...]:
            (made,) = module.graph.find_nodes(op="call_function", target=BEHIND[phase])
            with module.graph.inserting_before(made.next):
                failing = module.graph.call_function(torch.ops.aten.frx_fails.default, (made,))
            made.replace_all_uses_with(failing, delete_user_cb=lambda user: user is not failing)
            failing.meta = dict(made.meta)
            return ()

        monkeypatch.setattr("frx_graph.compiler.rewrite_pipeline.REWRITES", (Rewrite("planted", propose, apply),))
        monkeypatch.setattr("frx_graph.compiler.plans.ALL_REWRITES", ("planted",))

    return planted


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * x.shape[0]


def compiled(model: nn.Module, *, dynamic: bool | None = None) -> Callable[..., Tensor]:
    torch._dynamo.reset()
    backend.clear()
    program: Callable[..., Tensor] = torch.compile(
        model, backend="frx", options={"inner": "eager", "plan": "all"}, dynamic=dynamic
    )
    return program


def said(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message) for one in caught if FAILS in str(one.message)]


class Drops(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.5, training=True))


@pytest.mark.gives_way
def test_random_numbers_drawn_before_a_failure_are_drawn_again(
    plant: Callable[[Phase, Callable[[Tensor], Tensor]], None],
) -> None:
    plant(Phase.FORWARD, fail)
    model, x = Drops(), torch.randn(3, 5)
    program = compiled(model)
    with pytest.warns(RuntimeWarning, match=FAILS), torch.no_grad():
        torch.manual_seed(0)
        found = [program(x) for _ in range(2)]
    with torch.no_grad():
        torch.manual_seed(0)
        torch.testing.assert_close(found, [model(x) for _ in range(2)])


@pytest.mark.gives_way
@pytest.mark.parametrize("phase", Phase)
def test_failing_rewritten_graph_falls_back_to_the_original(
    plant: Callable[[Phase, Callable[[Tensor], Tensor]], None], phase: Phase
) -> None:
    plant(phase, fail)
    model, x = Net(), torch.randn(3, 5)
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    program = compiled(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            out = program(x)
            gradients = torch.autograd.grad(out.sum(), list(model.parameters()))
    torch.testing.assert_close(out, model(x))
    torch.testing.assert_close(gradients, expected)
    assert len(said(caught)) == 1
    assert "your program is unaffected" in said(caught)[0]
    # What was told to be applied is told to be so no more.
    last = {done.phase: done for done in backend.rewritten()}
    assert not any(done.applied for done in last.values())
    assert [refusal.subject for refusal in last[phase].refused if FAILS in refusal.reason] == ["planted"]


@pytest.mark.gives_way
def test_sizes_that_are_new_are_watched_too(plant: Callable[[Phase, Callable[[Tensor], Tensor]], None]) -> None:
    plant(Phase.FORWARD, fail_for_seven)
    model = Net()
    program = compiled(model, dynamic=True)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        for size in (3, 3, 4):
            x = torch.randn(size, 5)
            torch.testing.assert_close(program(x), model(x))
        assert not said(caught)
        for size in (7, 3, 7):
            x = torch.randn(size, 5)
            torch.testing.assert_close(program(x), model(x))
    assert len(said(caught)) == 1


@pytest.mark.gives_way
def test_it_goes_back_also_where_warnings_are_errors(
    plant: Callable[[Phase, Callable[[Tensor], Tensor]], None],
) -> None:
    plant(Phase.FORWARD, fail)
    model, x = Net(), torch.randn(3, 5)
    program = compiled(model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "frx applies rewrites")
        torch.testing.assert_close(program(x), model(x))


def run_of(
    ours: Callable[[list[Any]], Any],
    traced: Callable[[list[Any]], Any],
    fallback_state: FallbackState | None = None,
    *,
    takes: object = 3,
    **how: bool,
) -> GuardedGraph:
    """Of a graph that takes a size, or something else."""
    graph = fx.Graph()
    size = graph.placeholder("size")
    size.meta["val"] = takes
    graph.output(size)
    return GuardedGraph(ours, graph, lambda: traced, fallback_state or FallbackState(lambda _error: None), **how)


def raising(_arguments: list[int]) -> int:
    raise RuntimeError("ours")


def unasked(_arguments: list[int]) -> int:
    raise AssertionError("not asked for")


def unseen(_arguments: list[int]) -> int:
    """Seen by its result: where it raised, it would give way."""
    return -1


def test_failure_of_the_original_graph_is_the_programs_error() -> None:
    def own(_arguments: list[int]) -> int:
        raise IndexError("the program's")

    failed: list[Exception] = []
    run = run_of(raising, own, FallbackState(failed.append))
    for _ in range(2):
        with pytest.raises(IndexError, match="the program's") as caught:
            run([1])
        assert caught.value.__context__ is None
    assert not failed


def test_graph_that_succeeded_with_its_sizes_is_not_guarded() -> None:
    calls: list[list[int]] = []

    def ours(arguments: list[int]) -> int:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("out of memory, say")
        return arguments.pop()

    run = run_of(ours, unasked)
    assert run([1]) == 1
    with pytest.raises(RuntimeError, match="say"):
        run([1])


def test_sizes_that_never_come_twice_are_not_watched_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_MAX_GUARDED_SIZES", 2)

    def ours(arguments: list[int]) -> int:
        return 1 // (3 - arguments.pop())

    run = run_of(ours, sum)
    run([1])
    run([2])
    with pytest.raises(ZeroDivisionError):
        run([3])
    assert run_of(ours, sum)([3]) == 3


def test_arguments_that_were_taken_from_the_list_are_given_again() -> None:
    def ours(arguments: list[int]) -> int:
        arguments.clear()
        raise RuntimeError

    assert run_of(ours, sum)([2, 3]) == 5


def test_failed_graph_holds_no_memory_while_the_fallback_runs() -> None:
    held: list[weakref.ref[Tensor]] = []

    def ours(_arguments: list[int]) -> int:
        large = torch.empty(8)
        held.append(weakref.ref(large))
        raise RuntimeError("out of memory, say")

    assert run_of(ours, lambda _arguments: held[0]() is None)([1])


def test_a_forward_and_its_backward_go_back_together() -> None:
    failed: list[Exception] = []
    fallback_state = FallbackState(failed.append)
    forward, backward = run_of(raising, sum, fallback_state), run_of(unseen, sum, fallback_state)
    assert forward([1]) == 1
    assert backward([2]) == 2
    assert len(failed) == 1


X, Y, LAST = object(), object(), object()
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@pytest.mark.parametrize(
    ("calls", "again"),
    [
        ([(torch.ops.aten.add.Tensor, X, Y), (torch.ops.aten.relu.default, LAST)], True),
        ([(torch.ops.aten.split.Tensor, X, 2), (operator.getitem, LAST, 0)], True),
        ([(torch.ops.aten.native_dropout.default, X, 0.5, True)], False),
        ([(torch.ops.aten.relu.default, Y), (torch.ops.aten.copy_.default, X, LAST)], True),
        ([(torch.ops.aten.copy_.default, X, Y), (torch.ops.aten.relu.default, LAST)], False),
        ([(torch.ops.aten.relu_.default, X)], False),
        ([(torch.ops.aten.set_.source_Tensor, X, Y)], False),
        ([(torch.ops.aten._foreach_neg_.default, [X, Y])], False),
        ([(torch.ops.aten.view.default, X, [4]), (torch.ops.aten.relu_.default, LAST)], False),
        (
            [
                (torch.ops.aten.split.Tensor, X, 2),
                (operator.getitem, LAST, 0),
                (torch.ops.aten.copy_.default, LAST, Y),
            ],
            False,
        ),
        ([(torch.ops.aten.clone.default, X), (torch.ops.aten.relu_.default, LAST)], True),
        ([(ATTENTION, X, X, X, 0.0)], True),
        ([(ATTENTION, X, X, X, 0.5)], False),
        ([(torch.ops.aten.add.Tensor, X, Y), (torch.ops.aten.relu_.default, LAST)], True),
        ([(torch.ops._c10d_functional.wait_tensor.default, X)], False),
        ([(torch.ops.higher_order.cond, X, torch.relu, torch.tanh, Y)], False),
    ],
)
def test_only_what_leaves_nothing_behind_is_run_again(calls: list[tuple[Any, ...]], again: bool) -> None:
    graph = fx.Graph()
    known: dict[object, fx.Node] = {X: graph.placeholder("x"), Y: graph.placeholder("y")}
    for target, *args in calls:
        given = pytree.tree_map(lambda arg: known[arg] if type(arg) is object else arg, args)
        known[LAST] = graph.call_function(target, tuple(given))
    graph.output(known[LAST])
    assert can_rerun(graph) is again


@pytest.mark.parametrize(("device", "again"), [("cpu", True), ("meta", False)])
def test_only_random_numbers_of_the_cpu_are_drawn_again(device: str, again: bool) -> None:
    graph = fx.Graph()
    drops = graph.call_function(torch.ops.aten.native_dropout.default, (graph.placeholder("x"), 0.5, True))
    drops.meta["val"] = (torch.empty(2, device=device), torch.empty(2, device=device))
    graph.output(drops)
    assert can_rerun(graph) is again


def test_a_constant_that_is_written_into_stays_written() -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(torch.ops.aten.relu_.default, (graph.get_attr("weight"),)))
    assert not can_rerun(graph)


def test_out_of_memory_possibly_caused_by_the_monitor_does_not_blame_the_graph() -> None:
    calls: list[int] = []

    def ours(arguments: list[int]) -> int:
        calls.append(arguments[0])
        if len(calls) == 1:
            raise torch.OutOfMemoryError
        return -1

    fallback_state = FallbackState(unasked_error)
    run = run_of(ours, sum, fallback_state)
    assert [run([1]), run([1])] == [1, -1]
    assert not fallback_state.taken


def unasked_error(error: Exception) -> None:
    raise AssertionError from error


def run_out(value: Tensor) -> Tensor:
    if type(value) is Tensor:
        raise torch.OutOfMemoryError(FAILS)
    return torch.empty_like(value)


@pytest.mark.parametrize("phase", Phase)
def test_out_of_memory_step_runs_as_traced_without_a_warning(
    plant: Callable[[Phase, Callable[[Tensor], Tensor]], None], phase: Phase
) -> None:
    plant(phase, run_out)
    model, x = Net(), torch.randn(3, 5)
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    program = compiled(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            gradients = torch.autograd.grad(program(x).sum(), list(model.parameters()))
            torch.testing.assert_close(gradients, expected)
    assert not said(caught)


def test_what_a_forward_has_saved_as_traced_is_not_read_by_a_rewritten_backward() -> None:
    def ours(_arguments: list[int]) -> int:
        raise torch.OutOfMemoryError

    fallback_state = FallbackState(lambda _error: None)
    forward = run_of(ours, sum, fallback_state, saves=True)
    backward = run_of(unseen, sum, fallback_state)
    assert [forward([1]), backward([2])] == [1, 2]


def test_a_run_on_fakes_proves_nothing() -> None:
    def ours(arguments: list[Any]) -> Any:
        return fail(arguments.pop())

    run = run_of(ours, len, takes=torch.empty(2))
    with FakeTensorMode():
        assert run([torch.empty(2)]).shape == (2,)
    assert run([torch.empty(2)]) == 1


def test_a_run_with_symbolic_sizes_proves_nothing() -> None:
    size = ShapeEnv().create_unbacked_symint()

    def ours(arguments: list[Any]) -> Any:
        if arguments[0] is not size:
            raise RuntimeError
        return "ours"

    run = run_of(ours, sum)
    assert [run([size]), run([3])] == ["ours", 3]


class Program:
    """Something to refer to weakly."""

    def __init__(self, run: Callable[[list[int]], int]) -> None:
        self.run = run

    def __call__(self, arguments: list[int]) -> int:
        return self.run(arguments)


def test_failed_graph_is_released() -> None:
    ours, partner = Program(raising), Program(unseen)
    kept = [weakref.ref(ours), weakref.ref(partner)]
    fallback_state = FallbackState(lambda _error: None)
    runs = run_of(ours, sum, fallback_state), run_of(partner, sum, fallback_state)
    del ours, partner
    assert [run([1]) for run in runs] == [1, 1]
    gc.collect()
    assert [one() for one in kept] == [None, None]


@pytest.mark.parametrize("alone", [True, False])
def test_unneeded_fallback_program_is_released(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_MAX_GUARDED_SIZES", 1)
    traced = Program(sum)
    kept = weakref.ref(traced)
    fallback_state = FallbackState(lambda _error: None, alone=alone)
    run, partner = run_of(sum, traced, fallback_state), run_of(raising, len, fallback_state)
    del traced
    assert [run([2, 3]), run([2, 3])] == [5, 5]
    gc.collect()
    # A partner's failure may still ask for it.
    assert (kept() is None) is alone
    partner([1])
    assert run([2, 3]) == 5


def test_graph_reusing_the_id_of_a_failed_one_has_its_own_fallback(
    plant: Callable[[Phase, Callable[[Tensor], Tensor]], None],
) -> None:
    plant(Phase.FORWARD, fail)
    failed: list[Exception] = []
    plan = EagerPlan(make_current_plan("all"), lambda _done: None, failed.append)
    for made in (1, 2):
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(Net(), backend=plan)(torch.randn(3, 5))
        assert len(failed) == made


@pytest.mark.gives_way
def test_constants_of_a_graph_that_has_given_way_are_not_kept(
    plant: Callable[[Phase, Callable[[Tensor], Tensor]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(Phase.FORWARD, fail)
    made: list[weakref.ref[fx.GraphModule]] = []

    def noted(module: fx.GraphModule, frozen: FrozenWeights) -> None:
        bind_constants(module, frozen)
        made.append(weakref.ref(module))

    monkeypatch.setattr(eager, "bind_constants", noted)
    torch._dynamo.reset()
    model, x = Net().eval(), torch.randn(3, 5)
    program = frx_graph.compile(model, options={"inner": "eager", "plan": "all", "freeze": True})
    with torch.no_grad(), pytest.warns(RuntimeWarning, match=FAILS):
        torch.testing.assert_close(program(x), model(x))
    gc.collect()
    assert [one() for one in made] == [None]
