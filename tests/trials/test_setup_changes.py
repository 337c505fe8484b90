"""What the warning about a plan of another environment names."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch

from frx_graph.trials.environment import read_trial_setup
from frx_graph.trials.setup_changes import describe_setup_changes

SETUP = read_trial_setup(torch.device("cpu"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "the code of frx-graph"),
        ({"operators": replace(SETUP.operators, threads=7)}, f"threads 7 → {SETUP.operators.threads}"),
        ({"interop_threads": 99}, f"inter-op threads 99 → {SETUP.interop_threads}"),
        ({"variables": (("OMP_PROC_BIND", "close"),)}, "OMP_PROC_BIND close → none"),
        ({"cuda": "13.0", "cudnn": 91000}, "CUDA 13.0 → none, cuDNN 91000 → none"),
        ({"processor": "a\x1b[31m" + "b" * 90}, "processor a"),
    ],
)
def test_names_what_differs(changed: dict[str, object], said: str) -> None:
    now = replace(SETUP, variables=())
    before = json.loads(json.dumps(asdict(replace(now, **changed))))
    found = describe_setup_changes(before, now)
    assert found.startswith(said)
    assert found.isprintable()


def test_names_at_most_four() -> None:
    before = asdict(SETUP) | {"variables": [[f"OMP_{number}", "1"] for number in range(9)]}
    assert " and " in describe_setup_changes(before, SETUP)


def test_a_record_of_another_version_may_say_less() -> None:
    assert "torch none → " in describe_setup_changes({"frx": "0.1", "operators": 3, "variables": [["A"], "B"]}, SETUP)
