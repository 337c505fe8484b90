"""A backend whose plan is a function, watched on a machine whose clock goes on by what steps are said to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from frx_graph.compiler.fallback import LazyBaseline
from frx_graph.monitor.monitored_program import MonitoredProgram
from frx_graph.monitor.program_pair import ProgramPair
from frx_graph.monitor.step_metrics import Footprint
from frx_graph.trials.policy import TrialPolicy


@dataclass
class Machine:
    """A clock that goes on by what steps are said to take, and counters."""

    now: float = 0.0
    frames: int = 0
    held: int = 2**30
    roomy: bool = True
    works: bool = True
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def seconds(self) -> float:
        self.now += 1e-6
        return self.now

    read_clock = seconds

    def is_capturing(self) -> bool:
        return False

    def read_footprint(self) -> Footprint:
        return Footprint(self.frames, self.held)

    def can_fit_twice(self) -> bool:
        return self.roomy

    def can_fit(self, copied_bytes: int) -> bool:
        return self.roomy

    def is_device_usable(self) -> bool:
        return self.works

    def watch_disturbances(self) -> Any:
        return nullcontext(lambda: None)


class Watch:
    """`watch(...)` is a backend whose program for a graph is `planned(baseline's program, machine)`."""

    def __init__(self, planned: Callable[[Callable[..., Any], Machine], Callable[..., Any]], **how: Any) -> None:
        self.machine = Machine()
        self.reasons: list[str] = []
        self.programs: list[MonitoredProgram] = []
        self.kinds: list[type] = []
        self.steps = {"planned": 0, "baseline": 0}
        self.inner = how.pop("inner", "eager")
        self.baseline_seconds = how.pop("baseline_seconds", 1.0)
        self.policy = how.pop("policy", TrialPolicy(steps_per_block=2))
        self.how = {"promise": lambda: None, "train": False, "repeatable": True, **how}
        self.planned = planned

    def __call__(self, dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def counted(name: str, program: Callable[..., Any], seconds: float) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                self.steps[name] += 1
                self.machine.now += seconds
                return program(*args)

            return run

        def inner(graph: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
            backend = torch._dynamo.lookup_backend(self.inner)
            return counted("baseline", backend(graph, given), self.baseline_seconds)

        self.kinds = list(map(type, inputs))
        kept = LazyBaseline(dynamo, inputs, inner)
        # As all plans are, by AOTAutograd, whose programs count what they write into; `F.batch_norm` does not.
        right = torch._dynamo.lookup_backend("aot_eager" if self.inner == "eager" else self.inner)(dynamo, inputs)
        planned = counted("planned", self.planned(right, self.machine), 0.0)
        pair = ProgramPair(planned, kept, self.policy, self.machine, self.how["train"], self.how["repeatable"])
        rest = {name: value for name, value in self.how.items() if name not in ("train", "repeatable")}
        program = MonitoredProgram(pair, roll_back=self.reasons.append, **rest)
        self.programs.append(program)
        return program


def taking(seconds: Callable[[int], float]) -> Callable[..., Any]:
    """A right program whose step takes `seconds(step)`."""

    def planned(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
        steps = 0

        def run(*args: Any) -> Any:
            nonlocal steps
            steps += 1
            machine.now += seconds(steps)
            return right(*args)

        return run

    return planned


def leaking(right: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
    """A plan whose every call keeps 8 MiB more."""

    def run(*args: Any) -> Any:
        machine.held += 8 * 2**20
        return right(*args)

    return run
