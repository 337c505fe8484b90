"""Hold the planned and the baseline program of a monitored graph, and the facts that their calls have shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frx_graph.compiler.fallback import LazyBaseline
from frx_graph.monitor.step_metrics import StepMetrics
from frx_graph.support.process_state import RandomGenerators
from frx_graph.support.torch_internals import get_version
from frx_graph.trials.policy import TrialPolicy

Program = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ProgramPair:
    """The programs of a graph. `train`: a step has a backward. `repeatable`: a call may be computed twice."""

    planned: Program
    baseline: LazyBaseline
    policy: TrialPolicy
    metrics: StepMetrics
    train: bool
    repeatable: bool

    @property
    def whole_steps(self) -> bool:
        """True if a step lasts until the next one begins: a backward runs later, and a GPU works on after a call."""
        return self.train or self.metrics.device.type == "cuda"

    def run_baseline(self, *args: Any) -> Any:
        """Compute a call by the baseline."""
        return self.baseline.get_program(args)(*args)

    def can_repeat(self, args: Sequence[Any]) -> bool:
        """Return whether the call may be computed twice; in inference mode torch counts no writes into inputs."""
        return (
            self.repeatable
            and not torch.is_inference_mode_enabled()
            and not any(isinstance(arg, Tensor) and arg.is_inference() for arg in args)
        )


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a call, and the random number generators before it if the program may draw from them."""

    args: Sequence[Any]
    generators: RandomGenerators | None

    def replay(self, program: Program) -> Any:
        """Make the same call by `program`, which draws the same random numbers."""
        if self.generators is not None:
            self.generators.restore()
        return program(*self.args)


class CallHistory:
    """Record what decides whether calls can be repeated, retried, or alternate between the two programs."""

    def __init__(self, pair: ProgramPair) -> None:
        self._pair = pair
        self.written: frozenset[int] = frozenset()
        """Positions of the inputs that calls write into."""
        self.draws = False
        """True once a call has drawn random numbers; before, the generators' state is read at checks only."""
        self.awaits_backward = False
        self.forwards_share_backward = False
        self.free_shadow: Callable[[], None] | None = None
        """Free the tensors that a shadow run keeps for the backward of a step."""

    def begin(self, args: Sequence[Any]) -> Call:
        """Return the call that is about to be made."""
        return Call(args, RandomGenerators(self._pair.metrics.device) if self.draws else None)

    def can_retry(self, args: Sequence[Any]) -> bool:
        """Return whether a call that has failed can be made again: it has written into no input."""
        return not self.written and self._pair.can_repeat(args)

    def can_alternate(self) -> bool:
        """Return whether steps may alternate: not if a forward may run between another forward and its backward, and
        overwrite saved tensors. Eager's batch norm saves its running statistics, and does not count its writes to
        them."""
        one_by_one = self._pair.repeatable and not self.forwards_share_backward
        return one_by_one or not (self._pair.train and self.written)

    def record_writes(self, before: Sequence[int | None], args: Sequence[Any]) -> None:
        """Add the inputs whose version has changed since `before`."""
        pairs = enumerate(zip(before, read_versions(args), strict=True))
        self.written |= frozenset(i for i, (old, new) in pairs if old != new)


def read_versions(args: Sequence[Any]) -> tuple[int | None, ...]:
    """Return how often each tensor was written into; None if torch does not count."""
    return tuple(get_version(a) if isinstance(a, Tensor) and not a.is_inference() else None for a in args)
