"""What a plan has made of a program is made again from the names of its candidates alone, with nothing measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx, nn
from torch._inductor import config as inductor_config
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import fresh_cache
from torch.nn import functional

from frx_graph.compiler import rewrite_pipeline
from frx_graph.compiler.inner_compiler import make_planned_backend
from frx_graph.compiler.plans import make_current_plan, make_proposing_plan, make_recorded_plan
from frx_graph.compiler.rewrite_log import LOG
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.options import BackendOptions
from frx_graph.plan import Plan
from frx_graph.records import Candidate


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 16, 3, padding=1, groups=2)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.channel_shuffle(functional.relu(self.norm(self.first(x))), 4)
        return self.up(self.second(y) + x)


class WrittenAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.linear(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        return (q @ k.transpose(-2, -1) * 8**-0.5).softmax(-1) @ v


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (Residual, (2, 16, 12, 12)),
    "attention": (WrittenAttention, (2, 24, 32)),
}


@pytest.fixture(autouse=True)
def _nothing_noted():
    torch._dynamo.reset()
    LOG.clear()
    yield
    LOG.clear()


def compiled_with(
    plan: Plan, name: str, inner: str, train: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[RewrittenGraph], list[str], Tensor]:
    """What was done, the rewritten graphs as text, and what the program returned."""
    torch.manual_seed(0)
    made, shape = MODELS[name]
    model = made().train(train)
    x = torch.randn(shape, requires_grad=train)
    graphs: list[str] = []
    rewrite = rewrite_pipeline.rewrite_graph

    def noted(module: fx.GraphModule, **how: object) -> RewrittenGraph:
        done = rewrite(module, **how)
        graphs.append("\n".join(f"{node.format_node()} {node.meta.get('val')}" for node in module.graph.nodes))
        return done

    for importer in ("eager", "inductor"):
        monkeypatch.setattr(f"frx_graph.compiler.{importer}.rewrite_graph", noted)

    def failed(error: Exception) -> None:
        raise error

    torch._dynamo.reset()
    LOG.clear()
    compiled = torch.compile(model, backend=make_planned_backend(BackendOptions(inner=inner), plan, failed))
    # What comes out of a cache is not rewritten again.
    with fresh_cache(), torch.set_grad_enabled(train):
        result = compiled(x)
        if train:
            result.sum().backward()
    return list(LOG.read_all()), graphs, result.detach()


def named(done: list[RewrittenGraph]) -> tuple[Candidate, ...]:
    return tuple(replace(candidate, graph_id=graph.signature) for graph in done for candidate in graph.applied)


@pytest.mark.integration
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("policy", "inner", "train"),
    [("all", "eager", True), ("solved", "eager", False), ("all", "inductor", False), ("solved", "inductor", True)],
)
def test_the_same_graphs_come_out(
    name: str, policy: str, inner: str, train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, graphs, result = compiled_with(make_current_plan(policy), name, inner, train, monkeypatch)
    candidates = named(done)
    assert candidates or policy == "solved"
    again, graphs_again, result_again = compiled_with(make_recorded_plan(candidates), name, inner, train, monkeypatch)
    assert named(again) == candidates
    assert graphs_again == graphs
    assert torch.equal(result_again, result)


def test_nothing_is_made_of_other_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    done, _, _ = compiled_with(make_current_plan("all"), "convolutions", "eager", False, monkeypatch)
    others = tuple(replace(candidate, graph_id="0" * 16) for candidate in named(done))
    again, _, _ = compiled_with(make_recorded_plan(others), "convolutions", "eager", False, monkeypatch)
    assert named(again) == ()


@pytest.mark.integration
def test_only_what_a_plan_allows_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    done, _, _ = compiled_with(make_current_plan("all"), "convolutions", "eager", True, monkeypatch)
    assert {candidate.rewrite for candidate in named(done)} > {"propagate_layout"}
    plan = make_current_plan("all", only={"propagate_layout"})
    alone, _, _ = compiled_with(plan, "convolutions", "eager", True, monkeypatch)
    assert {candidate.rewrite for candidate in named(alone)} == {"propagate_layout"}


def chosen(name: str) -> Candidate:
    return Candidate("inner_choice", "", (), (name,))


def not_called(*_: object, **__: object) -> None:
    raise AssertionError("Inductor was called")


def test_another_compiler_has_the_graph_and_its_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen instead of Inductor, eager makes what a program that asks for eager gets."""
    plan = make_proposing_plan(make_current_plan("all").rewrites, ())
    expected, graphs, result = compiled_with(replace(plan, policy="all"), "convolutions", "eager", False, monkeypatch)
    assert expected
    monkeypatch.setattr(torch._TorchCompileInductorWrapper, "__call__", not_called)
    recorded = make_recorded_plan((chosen("eager"), *named(expected)))
    done, graphs_again, result_again = compiled_with(recorded, "convolutions", "inductor", False, monkeypatch)
    assert named(done) == (*named(expected), chosen("eager"))
    assert graphs_again == graphs
    assert torch.equal(result_again, result)


def test_another_compiler_alone_is_that_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._TorchCompileInductorWrapper, "__call__", not_called)
    done, graphs, result = compiled_with(
        make_recorded_plan((chosen("eager"),)), "attention", "inductor", True, monkeypatch
    )
    assert (named(done), graphs) == ((chosen("eager"),), [])
    torch.manual_seed(0)
    made, shape = MODELS["attention"]
    assert torch.equal(result, made()(torch.randn(shape)))


@pytest.mark.integration
@pytest.mark.parametrize("name", ["layout_optimization_off", "layout_optimization_forced"])
def test_inductor_is_given_the_options(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[bool, bool]] = []
    decide = GraphLowering.decide_layout_opt

    def noted(*args: object, **how: object) -> bool:
        given.append((inductor_config.layout_optimization, inductor_config.force_layout_optimization))
        return decide(*args, **how)

    monkeypatch.setattr(GraphLowering, "decide_layout_opt", staticmethod(noted))
    done, _, _ = compiled_with(make_recorded_plan((chosen(name),)), "convolutions", "inductor", False, monkeypatch)
    assert named(done) == (chosen(name),)
    assert set(given) == {(name.endswith("forced"), name.endswith("forced"))}


def test_what_pays_is_proposed_under_the_other_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_proposing_plan(make_current_plan("all").rewrites, (chosen("eager"),))
    done, _, _ = compiled_with(replace(plan, policy="all"), "attention", "inductor", False, monkeypatch)
    assert {candidate.rewrite for candidate in named(done)} >= {"inner_choice", "attention_from_views"}
