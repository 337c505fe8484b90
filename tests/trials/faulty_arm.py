"""An arm whose candidate has a planted fault, named by the first argument: a script, for the tests of the gates."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from frx_graph import answering_arm, trial_arm
from frx_graph.trial_workload import Loadable
from frx_graph.trials.arm_messages import Load, Loaded, MadeGraph

FAULT = sys.argv[1]
_kept: list[Tensor] = []
_calls = 0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(x)
        return y, y[:, :8]


class Faulty(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(x)
        if FAULT == "values":
            y = y * 1.01
        if FAULT == "one value":
            y = y + torch.zeros_like(y).index_fill(0, torch.tensor([3]), 1e-2)
        if FAULT == "NaN":
            y = torch.where(y > 1, torch.nan, y)
        if FAULT == "strides":
            y = y.t().contiguous().t()
        if FAULT == "break":
            torch._dynamo.graph_break()
        if FAULT == "memory":
            y = y + 0 * x.new_ones(4096, 64).sin().cos()[: len(y)]
        if FAULT == "aliases":
            return y, y[:, :8].clone().as_strided((len(y), 8), (8, 1))
        return y, y[:, :8]


class Outside(nn.Module):
    """Does what a compiled program cannot be made to do: between its steps."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        global _calls
        _calls += 1
        if FAULT == "crash" and _calls > 4:
            os.kill(os.getpid(), signal.SIGSEGV)
        if FAULT == "hang" and _calls > 4:
            time.sleep(3600)
        if FAULT == "leak":
            _kept.append(torch.ones(2**26))
        if FAULT == "output" and _calls > 4:
            while True:
                print("x" * 10**6)
        if FAULT == "recompiles":
            torch._dynamo.mark_static(x)
            self.model.counter = _calls
        return self.model(x)


class Recompiling(Model):
    counter = 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(x) + 0 * self.counter
        return y, y[:, :8]


def _load(self: answering_arm.TrialArm, asked: Load) -> Loaded:
    faulty = bool(asked.candidates)
    torch.manual_seed(0)
    model: nn.Module = Recompiling() if faulty and FAULT == "recompiles" else Faulty() if faulty else Model()
    x = torch.randn(32, 64)
    answering_arm.load_workload = lambda _: Loadable(model.train(asked.train), (x,), {})  # type: ignore[assignment]
    self.wanted = asked.candidates  # type: ignore[attr-defined]
    loaded = plain_load(self, replace(asked, candidates=()))
    assert self._program is not None
    if faulty:
        self._program = replace(self._program, call=Outside(self._program.call))
    return loaded


def _graphs(self: answering_arm.TrialArm) -> tuple[MadeGraph, ...]:
    """What was to be made counts as made."""
    first, *others = plain_graphs(self)
    return (replace(first, applied=self.wanted), *others)  # type: ignore[attr-defined]


if __name__ == "__main__":
    plain_load, plain_graphs = answering_arm.TrialArm._load, answering_arm.TrialArm._graphs
    answering_arm.TrialArm._load = _load  # type: ignore[method-assign]
    answering_arm.TrialArm._graphs = _graphs  # type: ignore[method-assign]
    trial_arm.main()
