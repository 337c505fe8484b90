import copy
import os
import subprocess
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.utils import counters, same
from torch._inductor.graph import GraphLowering
from torch._ops import OpOverload

import frx_graph
from frx_graph import backend
from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler import eager, inductor
from frx_graph.compiler.eager import EagerPlan
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.records import Candidate

pytestmark = pytest.mark.usefixtures("nothing_compiled")

INNERS = ["eager", "aot_eager", "inductor"]


class Branches(nn.Module):
    """Two layouts' worth of operators, an input that is written into, outputs that share memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
        y = torch.relu(self.norm(self.first(x)))
        z = nn.functional.max_pool2d(self.second(y) + y, 2)
        seen.add_(z.detach().mean())
        return self.head(z.mean((2, 3))), z, z.transpose(1, 3), z.flatten(1)[:, :3]


def planned(model, inner: str, plan: str = "all", **how):
    return torch.compile(model, backend="frx", options={"plan": plan, "inner": inner}, **how)


def run(program, x: Tensor, *, train: bool) -> tuple[list[Tensor], Tensor]:
    seen = torch.zeros(())
    with torch.set_grad_enabled(train):
        outputs = list(program(x, seen))
        if train:
            sum(t.square().mean() for t in outputs).backward()
    return outputs, seen


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:frx applies rewrites")
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("inner", INNERS)
def test_rewritten_program_is_indistinguishable_from_the_original(inner: str, train: bool) -> None:
    torch.manual_seed(0)
    model, twin = Branches().train(train), Branches().train(train)
    twin.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 8, 10)
    outputs, seen = run(planned(model, inner), x, train=train)
    expected, expected_seen = run(twin, x, train=train)
    assert same(expected, outputs, tol=1e-4)
    assert same(expected_seen, seen, tol=1e-4)
    assert [o.stride() for o in outputs] == [e.stride() for e in expected]
    assert outputs[1].data_ptr() == outputs[2].data_ptr()
    for ours, own in zip(model.parameters(), twin.parameters(), strict=True):
        if train:
            assert same(own.grad, ours.grad, tol=1e-3)
            assert own.grad.stride() == ours.grad.stride()
    for ours, own in zip(model.buffers(), twin.buffers(), strict=True):
        assert same(own, ours, tol=1e-4)
    phases = [done.phase.value for done in backend.rewritten()]
    assert phases == (["forward", "backward"] if train else ["forward"])
    assert all(done.applied for done in backend.rewritten())


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:frx applies rewrites")
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_other_sizes_compile_as_often_as_without_a_plan(inner: str) -> None:
    def recompiles(program) -> int:
        torch._dynamo.reset()
        counters.clear()
        for size in (8, 10, 12, 14):
            run(program, torch.randn(2, 3, size, size), train=False)
        return counters["stats"]["unique_graphs"]

    model = Branches().eval()
    with_plan = recompiles(planned(model, inner))
    assert with_plan == recompiles(torch.compile(model, backend=inner))


@pytest.mark.filterwarnings("ignore:frx applies rewrites")
def test_looking_for_constants_fixes_no_size() -> None:
    torch._dynamo.reset()
    counters.clear()
    model = nn.ConvTranspose2d(3, 2, 3, padding=1, dilation=2)
    compiled = torch.compile(model, backend="frx", options={"plan": "all", "inner": "eager"}, dynamic=True)
    with torch.no_grad():
        for size in (2, 3, 5):
            image = torch.randn(size, 3, 6, 1).expand(size, 3, 6, 5)
            torch.testing.assert_close(compiled(image), model(image))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.integration
@pytest.mark.gives_way
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_internal_failure_warns_once_and_changes_nothing(inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object, **_how: object) -> None:
        raise ZeroDivisionError("a bug")

    for module in (inductor, eager):
        monkeypatch.setattr(module, "rewrite_graph", broken)
    model = Branches().eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outputs, _ = run(planned(model, inner), torch.randn(2, 3, 8, 8), train=False)
    assert len(outputs) == 4
    ours = [str(w.message) for w in caught if "frx" in str(w.message)]
    assert sum("ZeroDivisionError: a bug" in message for message in ours) == 1


def spoil(phase: Phase, target: OpOverload) -> Callable[..., RewrittenGraph]:
    """Rewrites graphs of `phase` so that they cannot be compiled."""

    def spoilt(module: fx.GraphModule, **how: Any) -> RewrittenGraph:
        if how["phase"] is phase:
            for node in module.graph.find_nodes(op="call_function", target=target):
                node.target = "nothing that can be called"
        return RewrittenGraph("0", how["phase"], (Candidate("planted", "0", ()),), ())

    return spoilt


@pytest.mark.integration
@pytest.mark.gives_way
@pytest.mark.parametrize(("inner", "freeze"), [("eager", False), ("eager", True), ("inductor", False)])
def test_graph_that_fails_to_compile_rewritten_is_compiled_unchanged(
    inner: str, freeze: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (inductor, eager):
        monkeypatch.setattr(module, "rewrite_graph", spoil(Phase.FORWARD, torch.ops.aten.convolution.default))
    model, x = Branches().eval(), torch.randn(2, 3, 8, 8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = frx_graph.compile(model, options={"plan": "all", "inner": inner, "freeze": freeze})
        outputs, seen = run(compiled, x, train=False)
    torch.testing.assert_close((outputs, seen), run(model, x, train=False))
    assert sum("your program is unaffected" in str(w.message) for w in caught) == 1
    assert not any(done.applied for done in backend.rewritten()[-1:])


@pytest.mark.integration
@pytest.mark.gives_way
@pytest.mark.parametrize("dynamic", [False, True])
def test_backward_that_fails_to_compile_rewritten_is_compiled_unchanged(
    dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = spoil(Phase.BACKWARD, torch.ops.aten.convolution_backward.default)
    monkeypatch.setattr(eager, "rewrite_graph", spoilt)
    model, x = Branches(), torch.randn(2, 3, 8, 8)
    twin = copy.deepcopy(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outputs, seen = run(planned(model, "eager", dynamic=dynamic), x, train=True)
    torch.testing.assert_close((outputs, seen), run(twin, x, train=True))
    for ours, own in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, own.grad)
    assert sum("your program is unaffected" in str(w.message) for w in caught) == 1
    assert [done.phase for done in backend.rewritten()] == [Phase.FORWARD]


def test_uncompilable_program_raises_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise RuntimeError("ours")

    def own(*_args: object) -> None:
        raise IndexError("the program's")

    monkeypatch.setattr(EagerPlan, "__call__", broken)
    monkeypatch.setattr("frx_graph.compiler.inner_compiler._make_baseline_compiler", lambda _options: own)
    with warnings.catch_warnings(record=True) as caught, pytest.raises(Exception, match="the program's") as raised:
        warnings.simplefilter("always")
        planned(nn.Conv2d(3, 3, 1).eval(), "eager")(torch.randn(1, 3, 4, 4))
    assert not any("unaffected" in str(w.message) for w in caught)
    assert "RuntimeError: ours" not in "".join(traceback.format_exception(raised.value))


def test_a_plan_that_no_trial_has_proved_is_warned_of() -> None:
    with pytest.warns(RuntimeWarning, match="no trial has proved"):
        planned(nn.Conv2d(3, 3, 1).eval(), "eager")(torch.randn(1, 3, 4, 4))


@pytest.fixture
def may_choose(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether Inductor's own layout choice is switched on, for each graph that it asks itself about."""
    asked: list[bool] = []
    own = GraphLowering.decide_layout_opt

    def decide(gm, *, is_inference: bool) -> bool:
        asked.append(torch._inductor.config.layout_optimization)
        return own(gm, is_inference=is_inference)

    monkeypatch.setattr(GraphLowering, "decide_layout_opt", staticmethod(decide))
    return asked


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:frx applies rewrites")
def test_inductor_chooses_where_we_do_not(may_choose: list[bool]) -> None:
    """A graph that nothing was decided for is compiled with Inductor's own layout choice."""
    with torch.no_grad():
        planned(nn.Conv2d(3, 3, 1).eval(), "inductor")(torch.randn(1, 3, 4, 4))
        planned(nn.Linear(3, 3).eval(), "inductor")(torch.randn(1, 3))
    assert may_choose == [False, True]
    assert torch._inductor.config.layout_optimization


@pytest.mark.filterwarnings("ignore:frx applies rewrites")
@pytest.mark.parametrize(("rewrite", "chooses"), [("hoist_copy", True), ("propagate_layout", False)])
def test_inductor_chooses_unless_a_rewrite_has_decided(
    rewrite: str, chooses: bool, may_choose: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = RewrittenGraph("0/0", Phase.FORWARD, (Candidate(rewrite, "0/0", ("a", "b")),), ())
    monkeypatch.setattr(inductor, "rewrite_graph", lambda *_args, **_how: done)
    with torch.no_grad():
        planned(nn.Conv2d(3, 3, 1).eval(), "inductor")(torch.randn(1, 3, 4, 4))
    assert may_choose == [chooses]


@pytest.mark.integration
def test_a_second_process_finds_what_the_first_compiled(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import warnings
        warnings.simplefilter("ignore")
        import torch
        from torch._dynamo.utils import counters
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
        compiled = torch.compile(model, backend="frx", options={"plan": PLAN})
        compiled(torch.randn(1, 3, 9, 9)).sum().backward()
        hits, misses = counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]
        print(hits, misses)
        from frx_graph import backend
        print(*sorted(map(repr, backend.rewritten())), sep="\\n")
        """
    )

    def cached(plan: str, aot: bool = True) -> tuple[int, int, list[str]]:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "FRX_CACHE_DIR": str(tmp_path)}
        environment["TORCHINDUCTOR_AUTOGRAD_CACHE"] = str(int(aot))
        result = subprocess.run(
            [sys.executable, "-c", script.replace("PLAN", repr(plan))],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        counted, *told = result.stdout.splitlines()
        hits, misses = map(int, counted.split())
        return hits, misses, told

    hits, misses, told = cached("all")
    assert (hits, misses) == (0, 2)
    assert ["FORWARD" in done for done in told].count(True) == 1
    assert len(told) == 2
    assert all("layout" in done and "force_stride" in done for done in told)
    # What was done is told by whoever runs the graph, wherever it came from.
    assert cached("all") == (1, 0, told)
    assert cached("all", aot=False) == (0, 0, told)
    assert cached("solved")[0] == 0
