"""A program, and others that are wrong or slow in one way each: targets of trials, for the tests of the gates.

What no compiled program can be made to do without another graph, an operator does: to the compiler it is the same.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from frx_graph.trial_worker import worker

STEP_SECONDS = 0.010

_effect: Callable[[], None] = lambda: None  # noqa: E731
_calls = 0
_kept: list[Tensor] = []
_now = 0.0


@torch.library.custom_op("frx_faulty::outside", mutates_args=())
def outside(x: Tensor) -> Tensor:
    """A copy of `x`, and the program's side effect."""
    global _calls
    _calls += 1
    _effect()
    return x.clone()


@outside.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.tag = ""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(outside(x))
        return y, y[:, :8]


class Values(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(outside(x))
        y = y * 1.01
        return y, y[:, :8]


class LastPlace(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(outside(x))
        y = y.mul_(1 + 2**-23)
        return y, y[:, :8]


class OneValue(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(outside(x))
        y = y + torch.zeros_like(y).index_fill(0, torch.tensor([3]), 1e-2)
        return y, y[:, :8]


class NotANumber(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(outside(x))
        y = torch.where(y > 1, torch.nan, y)
        return y, y[:, :8]


class Strides(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(outside(x))
        y = y.t().contiguous().t()
        return y, y[:, :8]


class Gradients(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(outside(x).detach())
        y = y.detach() + (y - y.detach()) * 1.01
        return y, y[:, :8]


class Breaks(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(outside(x))
        torch._dynamo.graph_break()
        return y, y[:, :8]


class Recompiles(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(outside(x))
        self.tag += "x"
        return y, y[:, :8]


class Memory(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(outside(x))
        y = y + 0 * x.new_ones(16384, 64).sin().cos()[: len(y)]
        return y, y[:, :8]


class Aliases(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(outside(x))
        return y, y[:, :8].clone().as_strided((len(y), 8), (8, 1))


class Counts(Model):
    """Keeps a number that changes nothing yet."""

    steps = 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.steps += 1
        y = self.linear(outside(x))
        y = y * (1 if self.steps < 1000 else 2)
        return y, y[:, :8]


class Drifts(Model):
    """Keeps a tensor that is no buffer, and moves on by `by` with every step."""

    def __init__(self, by: float, wrong: float = 0.0) -> None:
        super().__init__()
        self.by = torch.tensor(by)
        self.wrong = torch.tensor(wrong)
        self.kept = torch.zeros(())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.kept = self.kept + self.by
        y = self.linear(outside(x)) + self.kept + self.wrong
        return y, y[:, :8]


class Draws(Model):
    """Adds random numbers, of which there are others in double precision, and some of Python's."""

    def __init__(self, wrong: float = 0.0) -> None:
        super().__init__()
        self.wrong = torch.tensor(wrong)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(outside(x)) * random.random()
        y = y + torch.randn_like(y) + self.wrong
        return y, y[:, :8]


def _made(
    model: Callable[[], Model] = Model, effect: Callable[[], None] | None = None
) -> tuple[nn.Module, tuple[Tensor]]:
    global _effect
    _effect = effect or _effect
    torch.manual_seed(0)
    return model(), (torch.randn(32, 64),)


def _crash() -> None:
    if _calls > 4:
        os.kill(os.getpid(), signal.SIGSEGV)


def _hang() -> None:
    if _calls > 4:
        time.sleep(3600)


def _leak() -> None:
    # 256 MiB; a trial runs more than four steps.
    _kept.append(torch.ones(2**26))


def _flood() -> None:
    while _calls > 4:
        print("x" * 10**6)


@contextlib.contextmanager
def _nothing_disturbs(*_: object) -> Iterator[Callable[[], None]]:
    """What else runs on this machine takes no simulated time."""
    yield lambda: None


def _on_a_simulated_clock(seconds: float) -> tuple[nn.Module, tuple[Tensor]]:
    """Each step takes so long by the only clock that there is; no two take exactly as long."""

    def work() -> None:
        global _now
        _now += seconds * (1 + 0.001 * ((_calls * 7919) % 13 - 6))

    time.perf_counter = lambda: _now
    worker.watch_block = _nothing_disturbs
    return _made(effect=work)


TARGETS = {
    "none": _made,
    "values": lambda: _made(Values),
    "last_place": lambda: _made(LastPlace),
    "one_value": lambda: _made(OneValue),
    "nan": lambda: _made(NotANumber),
    "gradients": lambda: _made(Gradients),
    "strides": lambda: _made(Strides),
    "aliases": lambda: _made(Aliases),
    "breaks": lambda: _made(Breaks),
    "recompiles": lambda: _made(Recompiles),
    "memory": lambda: _made(Memory),
    "leaks": lambda: _made(effect=_leak),
    "crashes": lambda: _made(effect=_crash),
    "hangs": lambda: _made(effect=_hang),
    "floods": lambda: _made(effect=_flood),
    "counts": lambda: _made(Counts),
    "drifts": lambda: _made(lambda: Drifts(1e-3)),
    "drifts_wrong": lambda: _made(lambda: Drifts(1e-3, 0.02)),
    "runs_away": lambda: _made(lambda: Drifts(1.0)),
    "runs_away_wrong": lambda: _made(lambda: Drifts(1.0, 0.5)),
    "draws": lambda: _made(Draws),
    "draws_wrong": lambda: _made(lambda: Draws(0.02)),
    "timed": lambda: _on_a_simulated_clock(STEP_SECONDS),
    "slower": lambda: _on_a_simulated_clock(STEP_SECONDS * 1.05),
    "faster": lambda: _on_a_simulated_clock(STEP_SECONDS / 1.05),
}
globals().update(TARGETS)
