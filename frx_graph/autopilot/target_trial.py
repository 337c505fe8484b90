"""The trial of what a target returns: candidates are asked for, tried together or one rewrite alone, and recorded."""

from __future__ import annotations

import difflib
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from frx_graph.autopilot.proposals import choices_in, chosen, portions, proposed, rewrites_of
from frx_graph.autopilot.trial_decisions import decisions_about
from frx_graph.compiler.plans import ALL_REWRITES, recorded_plan
from frx_graph.compiler.risk import allowed
from frx_graph.errors import OptionError, TrialError
from frx_graph.ledger.decision import Author, Decision
from frx_graph.passes.inner_choice import CHOICES
from frx_graph.records import Candidate, Risk
from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import Load, MadeGraph, TargetWorkload
from frx_graph.trials.executor import Programs, Progress, run_trial
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.trial_run import TrialRun
from frx_graph.trials.verdict import Outcome

Propose = Callable[[Load, Sequence[str]], tuple[MadeGraph, ...]]
"""What measured times speak for among rewrites in a program."""
_NAMES = frozenset({*ALL_REWRITES, *(choice.name for choice in CHOICES)})
_LEAST_SECONDS = 1.0
"""For a trial whose time budget has just ended: it says so itself."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants tried."""

    workload: TargetWorkload
    train: bool
    inner: str
    candidate: str | None
    """A rewrite, or another way to compile the program; None: all that measured times speak for, together."""
    against_itself: bool
    candidates: int = 1
    """How many of this program are tried, each by a trial of its own: alpha is divided by it."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial, and what was made of which graph in it."""

    run: TrialRun
    graphs: tuple[MadeGraph, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All of them, each once."""
        return _candidates(self.graphs)

    @property
    def plans(self) -> frozenset[tuple[str, str]]:
        """The signatures of graphs, each with the plan that was made of it."""
        return frozenset((graph.signature, recorded_plan(graph.applied).hash) for graph in self.graphs)

    @property
    def promotes(self) -> bool:
        """Whether what it has found out may be applied. The gain of several graphs proves none of them: one may be
        slower than it was, and would be applied alone wherever it occurs."""
        return self.run.verdict.outcome is Outcome.PROMOTE and len(self.plans) < 2


def try_target(asked: Asked, policy: TrialPolicy, progress: Progress) -> Tried | None:
    """Run the trial; None where there is nothing to try. All of it together has the policy's time budget.

    Raises `TrialError` where the program does not run, or the budget ends before there is something to try, and
    `OptionError` for a candidate that nothing speaks for."""
    deadline = time.monotonic() + policy.time_budget_seconds
    propose = functools.partial(_proposed, deadline)
    base = Load(asked.workload, asked.train, asked.inner, policy.seed)
    graphs: tuple[MadeGraph, ...] = ()
    if not asked.against_itself:
        progress("asking for candidates")
        rewrites = allowed(ALL_REWRITES, policy.risk)
        graphs = propose(base, rewrites)
        if asked.candidate is not None:
            progress(f"asking for {asked.candidate} alone")
            graphs = _alone(asked.candidate, base, graphs, rewrites, policy.risk, propose)
        graphs = tuple(graph for graph in graphs if graph.applied)
        if not graphs:
            return None
    programs = Programs(base, replace(base, candidates=_candidates(graphs)))
    rest = policy.model_copy(update={"time_budget_seconds": _left(deadline)})
    return Tried(run_trial(programs, rest, start_arm, candidates=asked.candidates, progress=progress), graphs)


def _left(deadline: float) -> float:
    return max(_LEAST_SECONDS, deadline - time.monotonic())


def _proposed(deadline: float, base: Load, rewrites: Sequence[str]) -> tuple[MadeGraph, ...]:
    try:
        return proposed(base, rewrites, _left(deadline))
    except TrialError as error:
        if time.monotonic() < deadline:
            raise
        raise TrialError(
            "the time budget ended before there was something to try", "raise time_budget_seconds"
        ) from error


def decisions(tried: Tried, policy: TrialPolicy, document: str, by: Author) -> tuple[Decision, ...]:
    """What a trial decides about each graph that something was made of; where there are several, only that it was
    tried."""
    environment = tried.run.environment
    if environment is None:
        return ()
    return tuple(
        decision
        for graph in tried.graphs
        for decision in decisions_about(
            graph.signature,
            graph.applied,
            tried.run.verdict,
            environment=environment,
            policy=policy,
            document=document,
            by=by,
            others=len(tried.plans) - 1,
        )
    )


def _candidates(graphs: Sequence[MadeGraph]) -> tuple[Candidate, ...]:
    return tuple(dict.fromkeys(candidate for graph in graphs for candidate in graph.applied))


def _alone(
    name: str,
    base: Load,
    graphs: tuple[MadeGraph, ...],
    rewrites: tuple[str, ...],
    risk: Risk,
    propose: Propose,
) -> tuple[MadeGraph, ...]:
    """What is made where only this is asked for, of `graphs` that all is made of."""
    if name in _NAMES and not allowed((name,), risk):
        raise OptionError(f"candidate {name!r} is of a higher risk than the policy allows", f"risk is {risk}: raise it")
    choices = choices_in(graphs, risk)
    if name in choices:
        return chosen(choices[name], graphs, rewrites, lambda made, only: propose(replace(base, candidates=made), only))
    found = portions(_candidates(graphs))
    if name not in found:
        known = sorted({*found, *choices})
        near = difflib.get_close_matches(name, known, n=1)
        listed = f"candidates: {', '.join(known)}" if known else "nothing speaks for any rewrite here"
        raise OptionError(f"no candidate {name!r}", f"did you mean {near[0]!r}?" if near else listed)
    return graphs if len(found) == 1 else propose(base, rewrites_of(name))
