from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import fx

from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler import rewrite_pipeline
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph, rewrite_graph, rollback_on_error
from frx_graph.plan import PROPOSED, Plan
from frx_graph.records import Candidate, Refusal


def module() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: torch.relu(x + 1))


def spoilt(traced: fx.GraphModule) -> None:
    (relu,) = traced.graph.find_nodes(op="call_function", target=torch.relu)
    relu.target = torch.tanh
    traced.recompile()


def test_a_change_that_fails_leaves_no_trace() -> None:
    traced = module()
    names = [node.name for node in traced.graph.nodes]
    with pytest.raises(ZeroDivisionError), rollback_on_error(traced):
        spoilt(traced)
        raise ZeroDivisionError
    assert [node.name for node in traced.graph.nodes] == names
    assert traced.graph.owning_module is traced
    x = torch.randn(3)
    assert torch.equal(traced(x), torch.relu(x + 1))


def test_a_change_that_does_not_fail_stays() -> None:
    traced = module()
    with rollback_on_error(traced):
        spoilt(traced)
    x = torch.randn(3)
    assert torch.equal(traced(x), torch.tanh(x + 1))


GAINS = {"propagate_layout": -3e-3, "fold_padding": 1e-3, "onednn_products": 1e-3}


def rewrite(
    monkeypatch: pytest.MonkeyPatch,
    gains: Mapping[str, float | None] = GAINS,
    *,
    policy: str = "solved",
    train: bool = False,
    disturbed: bool = False,
    frozen: tuple[str, ...] = (),
) -> tuple[fx.GraphModule, RewrittenGraph]:
    """Rewrite a graph in which each rewrite adds a node, and saves what `gains` says."""

    def rewrite_once(module: fx.GraphModule, phase: Phase, _train: bool, _inner: str, plan: Plan, *_: object):
        made = [name for name in gains if plan.can_make(name)]
        for name in made:
            with module.graph.inserting_before(module.graph.output_node()):
                module.graph.call_function(torch.relu, (next(iter(module.graph.nodes)),), name=name)
        applied = tuple(Candidate(name, "0/0", (name,), predicted_seconds=gains[name]) for name in made)
        left = tuple(Refusal(name, "one of its operators has no time") for name in made)
        return RewrittenGraph("0/0", phase, applied, left, run_seconds=None if disturbed else 0.1, disturbed=disturbed)

    monkeypatch.setattr(rewrite_pipeline, "_rewrite_once", rewrite_once)
    traced, plan = module(), Plan(policy, tuple(gains), "", ())
    return traced, rewrite_graph(traced, phase=Phase.FORWARD, train=train, inner="inductor", plan=plan, frozen=frozen)


def list_made(traced: fx.GraphModule, found: RewrittenGraph) -> list[str]:
    made = [candidate.rewrite for candidate in found.applied]
    names = {node.name for node in traced.graph.nodes}
    assert names.intersection(GAINS) == set(made)
    return made


def test_graph_that_is_predicted_to_be_slower_is_rewritten_without_what_loses_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced, found = rewrite(monkeypatch)
    assert list_made(traced, found) == ["fold_padding", "onednn_products"]
    *left, refusal = found.refused
    # What each rewrite left alone stays in the record, also that of the rewrite that was taken back.
    assert sorted(one.subject for one in left) == sorted(GAINS)
    # The rewrite has inserted the node that it names, so the graph does not have it.
    assert (refusal.subject, refusal.nodes) == ("propagate_layout", ())
    assert "predicted to be slower" in refusal.reason
    traced.graph.lint()


def test_graph_is_given_back_if_every_rewrite_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, found = rewrite(monkeypatch, dict.fromkeys(GAINS, -1e-3))
    assert list_made(traced, found) == []
    assert {refusal.subject for refusal in found.refused} == set(GAINS)
    x = torch.randn(3)
    assert torch.equal(traced(x), torch.relu(x + 1))


@pytest.mark.parametrize(
    "how",
    [
        {"policy": "all"},
        {"policy": PROPOSED},
        {"policy": "recorded"},
        {"train": True},
        {"disturbed": True},
        {"frozen": ("x",)},
    ],
)
def test_predicted_loss_is_kept_where_another_decides(monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]) -> None:
    traced, found = rewrite(monkeypatch, **how)
    assert list_made(traced, found) == list(GAINS)
    assert not any("predicted" in refusal.reason for refusal in found.refused)


@pytest.mark.parametrize(
    "gains",
    [
        {**GAINS, "fold_padding": 5e-3},
        {**GAINS, "fold_padding": 1.8e-3},
        {**GAINS, "fold_padding": None},
        dict.fromkeys(GAINS, None),
    ],
)
def test_small_loss_of_all_together_and_unknown_gains_keep_every_rewrite(
    monkeypatch: pytest.MonkeyPatch, gains: dict[str, float | None]
) -> None:
    traced, found = rewrite(monkeypatch, gains)
    assert list_made(traced, found) == list(GAINS)
