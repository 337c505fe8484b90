"""In what portions proposals are tried, and which of them are known without asking again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from frx_graph.autopilot import proposals
from frx_graph.autopilot.proposals import (
    apply_choice,
    find_choices,
    find_known_portion,
    group_by_portion,
    list_rewrites,
    predict_step,
    propose_rewrites,
)
from frx_graph.errors import TrialError
from frx_graph.passes.inner_choice import EVERY_GRAPH, POOLED
from frx_graph.passes.inner_choice import NAME as INNER_CHOICE
from frx_graph.records import Candidate, Risk
from frx_graph.support.allocator import Allocation
from frx_graph.support.supervisor.process import extend_pythonpath
from frx_graph.trials.arm_messages import Load, MadeGraph, TargetWorkload
from frx_graph.trials.arm_process import ArmProcess, Limits

ATTENTION = Candidate("attention_from_views", "a", ("mm",), predicted_seconds=1e-3)
HOIST = Candidate("hoist_copy", "a", ("clone",))
FORWARD = Candidate("propagate_layout", "a", ("conv",), ("0,2,3,1",), 2e-3)
BACKWARD = Candidate("backward_layout", "b", ("conv",), ("0,2,3,1",), 3e-3)
PRODUCTS = Candidate("onednn_products", "a", ("addmm",), ("dot",), 1e-4)


def test_portions_are_ranked_by_what_they_are_predicted_to_save() -> None:
    found = group_by_portion((HOIST, ATTENTION, FORWARD, BACKWARD, ATTENTION))
    assert list(found) == ["propagate_layout", "attention_from_views", "hoist_copy"]
    assert found == pytest.approx({"propagate_layout": 5e-3, "attention_from_views": 2e-3, "hoist_copy": 0.0})


def test_what_is_made_first_is_the_same_alone() -> None:
    together = (ATTENTION, FORWARD, PRODUCTS)
    assert find_known_portion(together, "attention_from_views") == (ATTENTION,)
    assert find_known_portion(together, "propagate_layout") is None
    assert find_known_portion(together, "onednn_products") is None


def test_all_rewrites_of_a_portion_have_to_come_first() -> None:
    assert find_known_portion((FORWARD, BACKWARD, PRODUCTS), "propagate_layout") == (FORWARD, BACKWARD)
    # The backward's layout is chosen after the copy was hoisted.
    assert find_known_portion((HOIST, BACKWARD), "propagate_layout") is None
    assert find_known_portion((HOIST, BACKWARD), "hoist_copy") == (HOIST,)


def test_a_layout_is_one_portion() -> None:
    assert list_rewrites("propagate_layout") == ("propagate_layout", "backward_layout")
    assert list_rewrites("hoist_copy") == ("hoist_copy",)


def _choice(name: str, saved: float | None, run: float | None) -> Candidate:
    return Candidate(INNER_CHOICE, EVERY_GRAPH, (), (name,), saved, run)


def test_a_choice_saves_what_it_saves_in_all_graphs() -> None:
    graphs = [MadeGraph(str(saved), untried=(_choice("layout_optimization_off", saved, 1.0),)) for saved in (0.1, 0.3)]
    (found,) = find_choices(graphs, Risk.MEDIUM).values()
    assert (found.predicted_seconds, found.run_seconds) == (pytest.approx(0.4), 2.0)
    made = apply_choice(found, graphs, (), pytest.fail)
    assert predict_step(made) == (pytest.approx(0.4), 2.0)
    unknown = MadeGraph("c", untried=(_choice("layout_optimization_off", None, 1.0),))
    assert find_choices([*graphs, unknown], Risk.MEDIUM)["layout_optimization_off"].predicted_seconds is None


def test_another_compiler_saves_the_difference_of_both_prices() -> None:
    eager = _choice("eager", None, None)
    base = MadeGraph("s", untried=(_choice("eager", None, 3.0),))

    def propose(choice: tuple[Candidate, ...], rewrites: object) -> tuple[MadeGraph, ...]:
        rewrite = Candidate("propagate_layout", "g", ("conv",), predicted_seconds=0.5, run_seconds=2.0)
        (chosen,) = choice
        return (MadeGraph("s", applied=(rewrite, Candidate(INNER_CHOICE, "", (), chosen.choices, None, 2.0))),)

    made = apply_choice(eager, [base], ("propagate_layout",), propose)
    assert predict_step(made) == (pytest.approx(1.5), 3.0)
    assert group_by_portion(made[0].applied) == {"eager": pytest.approx(1.5)}
    # Without a price of the baseline there is no prediction.
    assert predict_step(apply_choice(eager, [], (), propose)) == (None, None)


@pytest.mark.integration
def test_missing_compiler_is_the_reported_reason(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n\ndef build():\n    return torch.nn.GELU(), (torch.randn(2, 3),)\n"
    )
    without = {"CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}

    def start(limits: Limits | None) -> ArmProcess:
        return ArmProcess(
            [sys.executable, "-m", "frx_graph.trial_worker"],
            limits=limits,
            environment={**extend_pythonpath(), **without},
        )

    base = Load(TargetWorkload(f"{tmp_path / 'model.py'}:build"), False, "inductor", seed=0)
    with pytest.raises(TrialError) as caught:
        propose_rewrites(base, ("hoist_copy",), start=start)
    assert str(caught.value) == ("the program does not run: Inductor finds no C++ compiler (install g++, or set CXX)")


@pytest.mark.parametrize(
    ("own", "isolated", "offered"),
    [
        (Allocation.DEFAULT, True, True),
        (Allocation.DEFAULT, False, False),
        (Allocation.POOLED, True, False),
        (Allocation.CHOSEN, True, False),
    ],
)
def test_memory_is_pooled_only_in_processes_of_its_own(
    monkeypatch: pytest.MonkeyPatch, own: Allocation, isolated: bool, offered: bool
) -> None:
    monkeypatch.setattr(proposals, "read_allocation", lambda: own)
    graph = MadeGraph("a", untried=(Candidate(INNER_CHOICE, EVERY_GRAPH, (), (POOLED,)),))
    # In one process each risk counts as one tier higher, and the highest is allowed.
    assert (POOLED in find_choices([graph], Risk.HIGH, isolated=isolated)) is offered
