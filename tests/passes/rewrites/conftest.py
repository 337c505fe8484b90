"""A program's graphs before and after rewriting, as an inner compiler gets them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

import frx_graph
from frx_graph import backend
from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler import eager
from frx_graph.compiler.eager import EagerPlan
from frx_graph.compiler.plans import make_current_plan
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph, rewrite_graph

_TOLERANCES = {torch.bfloat16: 1.6e-2}
"""`torch.testing`'s own for a format of 8 bits, of which less would ask for the same bits. Without
AVX-512, convolutions of the two layouts are summed in other orders."""


@dataclass
class Rewritten:
    """One graph: as it was traced, as it was left, and what was done to it."""

    before: fx.Graph
    after: fx.Graph
    done: RewrittenGraph

    def targets(self) -> list[str]:
        """The operators that are left, in order."""
        return _targets(self.after)

    def before_targets(self) -> list[str]:
        """The operators that there were."""
        return _targets(self.before)

    def strides(self, operator: str) -> list[tuple[int, ...]]:
        """Those of each result of `operator` that is a tensor."""
        return [tuple(n.meta["val"].stride()) for n in self.after.nodes if str(n.target) == operator]


def _targets(graph: fx.Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


@dataclass
class Outcome:
    """The graphs of a program in the order in which they were compiled, and what the program returned."""

    graphs: list[Rewritten]
    outputs: list[Tensor]
    gradients: list[Tensor]

    def graph(self, phase: Phase) -> Rewritten:
        """The one graph of `phase`."""
        (found,) = [graph for graph in self.graphs if graph.done.phase is phase]
        return found


Rewrite = Callable[..., Outcome]


@pytest.fixture
def rewrite(monkeypatch: pytest.MonkeyPatch) -> Rewrite:
    """Runs a program under a plan and without one, checks that nobody can tell, and returns the graphs."""

    def run(
        program: Callable[..., Any],
        *args: Any,
        train: bool = False,
        plan: str = "all",
        dynamic: bool | None = None,
        **changes: Any,
    ) -> Outcome:
        graphs: list[Rewritten] = []

        def noted(module: fx.GraphModule, **how: Any) -> RewrittenGraph:
            before = copy.deepcopy(module.graph)
            done = rewrite_graph(module, **{**how, **changes})
            graphs.append(Rewritten(before, module.graph, done))
            return done

        monkeypatch.setattr(eager, "rewrite_graph", noted)

        def never(error: Exception) -> None:
            raise error

        theirs = [_fresh(a) for a in args]
        expected, expected_gradients = _run(program, theirs, train)
        torch._dynamo.reset()
        compiled = torch.compile(
            program, backend=EagerPlan(make_current_plan(plan), lambda _done: None, never), dynamic=dynamic
        )
        mine = [_fresh(a) for a in args]
        outputs, gradients = _run(compiled, mine, train)
        written = [(a, b) for a, b in zip(mine, theirs, strict=True) if isinstance(a, Tensor)]
        for ours, own in [*zip([*outputs, *gradients], [*expected, *expected_gradients], strict=True), *written]:
            torch.testing.assert_close(ours, own, rtol=_TOLERANCES.get(ours.dtype, 1e-4), atol=1e-5)
            assert ours.stride() == own.stride()
        return Outcome(graphs, outputs, gradients)

    return run


def _fresh(argument: Any) -> Any:
    """A tensor of one's own to write into, with the same strides."""
    return (
        argument.detach().clone().requires_grad_(argument.requires_grad) if isinstance(argument, Tensor) else argument
    )


def _run(program: Callable[..., Any], args: Sequence[Any], train: bool) -> tuple[list[Tensor], list[Tensor]]:
    state = copy.deepcopy(program.state_dict()) if isinstance(program, nn.Module) else {}
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    parameters = list(program.parameters()) if isinstance(program, nn.Module) else []
    torch.manual_seed(0)
    with torch.set_grad_enabled(train):
        outputs = [t for t in pytree.tree_leaves(program(*args)) if isinstance(t, Tensor)]
        gradients: list[Tensor] = []
        if train:
            loss = sum(t.double().square().sum() for t in outputs if t.requires_grad)
            found = torch.autograd.grad(loss, [*leaves, *parameters], allow_unused=True)
            gradients = [g for g in found if g is not None]
    if isinstance(program, nn.Module):
        program.load_state_dict(state)
    return [t.detach().clone() if t.requires_grad else t for t in outputs], gradients


@dataclass
class Frozen:
    """A program frozen for eager execution: `run` calls it and checks that nobody can tell; `graphs` are what runs."""

    run: Callable[..., None]
    graphs: list[fx.Graph]

    def targets(self) -> list[str]:
        """The operators of the last graph, in order; those that write in place by the names of those that do not."""
        return [target.replace("_.", ".") for target in _targets(self.graphs[-1])]

    def calls(self, operator: str) -> list[fx.Node]:
        """The calls of `operator` in the last graph."""
        return [node for node in self.graphs[-1].nodes if str(node.target) == operator]

    def applied(self) -> list[tuple[str, int]]:
        """The rewrites of the last graph, with how many nodes each names."""
        return [(c.rewrite, len(c.nodes)) for c in backend.rewritten()[-1].applied]

    def reasons(self, rewrite: str) -> list[str]:
        """Why `rewrite` was refused in the last graph."""
        return [r.reason for r in backend.rewritten()[-1].refused if r.subject == rewrite]


@pytest.fixture
def freeze(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Frozen]:
    """Freezes a model for eager execution."""

    def frozen(model: nn.Module, plan: str = "all", tolerance: float = 1e-4, **how: Any) -> Frozen:
        torch._dynamo.reset()
        backend.clear()
        graphs: list[fx.Graph] = []
        bind = eager.bind_constants

        def noted(module: fx.GraphModule, constants: Any) -> None:
            bind(module, constants)
            graphs.append(module.graph)

        monkeypatch.setattr(eager, "bind_constants", noted)
        monkeypatch.setattr(eager.EagerPlan, "__init__", _strict(eager.EagerPlan.__init__))
        compiled = frx_graph.compile(model.eval(), options={"inner": "eager", "plan": plan, "freeze": True}, **how)

        def run(*args: Tensor) -> None:
            with torch.no_grad():
                expected = pytree.tree_leaves(model(*args))
                # The second call gets the constants as the first has left them.
                for found in (pytree.tree_leaves(compiled(*args)), pytree.tree_leaves(compiled(*args))):
                    for ours, own in zip(found, expected, strict=True):
                        torch.testing.assert_close(ours, own, rtol=tolerance, atol=tolerance)
                        assert ours.stride() == own.stride()

        return Frozen(run, graphs)

    return frozen


def _strict(init: Callable[..., None]) -> Callable[..., None]:
    def fails(error: Exception) -> None:
        raise error

    return lambda self, plan, told, _failed, **how: init(self, plan, told, fails, **how)
