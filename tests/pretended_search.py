"""The autopilot's search for a plan of one graph, with stand-ins for the processes that it starts: what is proposed and
how each trial ends is said beforehand, and it can be ended anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import fx, nn

from frx_graph.autopilot import search, trial_decisions
from frx_graph.autopilot.search_log import SearchLog
from frx_graph.errors import TrialError
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.measure.machine.busy_programs import MachineLoad
from frx_graph.options import parse_backend_options
from frx_graph.records import Candidate
from frx_graph.trials.arm_messages import Load, MadeGraph
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import Programs
from frx_graph.trials.trial_run import TrialRun
from frx_graph.trials.verdict import Outcome, TrialStatistics, Verdict

SIGNATURE, HERE = "0" * 16, "e" * 16
ENVIRONMENT = read_trial_environment(torch.device("cpu"))
Rewrites = tuple[str, ...]


@dataclass
class PretendedSearch:
    """What is asked for and tried, in order. `ratios` says how each trial of these rewrites ends: promoted above 1."""

    proposals: tuple[Candidate, ...]
    choices: tuple[Candidate, ...] = ()
    under_eager: tuple[Candidate, ...] = ()
    ratios: dict[Rewrites, float] = field(default_factory=dict)
    asked: list[Rewrites] = field(default_factory=list)
    tried: list[Rewrites] = field(default_factory=list)
    recorded: list[Decision] = field(default_factory=list)
    now: float = 0.0
    fails: Rewrites | None = None
    """Its trial cannot be run."""
    slow: Rewrites | None = None
    """To ask for it takes all the time that there is."""
    seconds: list[float] = field(default_factory=list)
    at: Callable[[], None] = lambda: None
    """Called before each trial, before each append, and after it; it may raise."""
    load: MachineLoad | None = None
    """What other programs do before the first trial."""
    signature: str = SIGNATURE
    environment: str = HERE
    policy: TrialPolicy = field(default_factory=lambda: TrialPolicy(time_budget_seconds=100))

    def try_graph(
        self,
        rejected: frozenset[str] = frozenset(),
        record: Callable[[Sequence[Decision]], object] | None = None,
        log: SearchLog | None = None,
    ) -> tuple[Candidate, ...]:
        """As the autopilot does. What is decided goes to `record`, or is kept."""

        def keep(decisions: Sequence[Decision]) -> None:
            self.at()
            (record or self.recorded.extend)(decisions)
            self.at()

        with ExitStack() as stack:
            for module, name, stand_in in (
                (search, "propose_rewrites", self._proposed),
                (search, "run_trial", self._run_trial),
                (search, "sample_machine_load", lambda _: self.load),
                (search, "time", SimpleNamespace(monotonic=lambda: self.now)),
                (search, "write_graph", lambda folder, *_: Path(folder).exists()),
                (trial_decisions, "compute_environment_key", lambda _: self.environment),
            ):
                stack.enter_context(patch.object(module, name, stand_in))
            return search.try_graph(
                fx.symbolic_trace(nn.ReLU()),
                [torch.ones(2)],
                parse_backend_options({}, None),
                self.policy,
                signature=self.signature,
                environment=self.environment,
                record=keep,
                progress=lambda _: None,
                rejected=rejected,
                log=log,
            )

    @property
    def promoted(self) -> list[Rewrites]:
        """What was kept of it, in order."""
        return [tuple(c.rewrite for c in one.candidates) for one in self.recorded if one.kind is Kind.PROMOTED]

    def _proposed(self, base: Load, rewrites: Sequence[str], seconds: float, _start: Any) -> tuple[MadeGraph, ...]:
        self.asked.append(tuple(rewrites))
        self.seconds.append(seconds)
        if tuple(rewrites) == self.slow:
            self.now += seconds
            raise TrialError("the program does not run: it took too long")
        made = (one for one in (*self.proposals, *self.under_eager) if one.rewrite in rewrites)
        kept = self.under_eager if base.candidates else self.proposals
        applied = (*base.candidates, *(one for one in made if one in kept))
        return (MadeGraph(self.signature, applied, () if base.candidates else self.choices),)

    def _run_trial(self, programs: Programs, *_: Any, **__: Any) -> TrialRun:
        self.at()
        rewrites = tuple(one.choices[0] if not one.nodes else one.rewrite for one in programs.candidate.candidates)
        self.tried.append(rewrites)
        if rewrites == self.fails:
            raise TrialError("the baseline does not run")
        ratio = self.ratios[rewrites]
        stats = TrialStatistics(ratio, ratio, ratio, 35, 5, (ratio,), 0)
        outcome = Outcome.PROMOTE if ratio > 1 else Outcome.REJECT
        return TrialRun((), Verdict(outcome, "a test", stats, early=False), (), ENVIRONMENT, (self.signature,))
