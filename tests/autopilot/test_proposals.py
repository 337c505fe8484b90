"""In what portions proposals are tried, and which of them are known without asking again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from frx_graph.autopilot.proposals import find_known_portion, group_by_portion, list_rewrites, propose_rewrites
from frx_graph.errors import TrialError
from frx_graph.records import Candidate
from frx_graph.support.supervisor.process import extend_pythonpath
from frx_graph.trials.arm_messages import Load, TargetWorkload
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
