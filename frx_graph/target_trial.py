"""The trial of what a target returns: candidates are asked for, tried together or one rewrite alone, and recorded."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import TypeAdapter

from frx_graph.arms import start_arm
from frx_graph.current_plan import ALL_REWRITES, recorded_plan
from frx_graph.environment_key import environment_key
from frx_graph.errors import OptionError, TrialError
from frx_graph.ledger.author import Author
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.records import Candidate
from frx_graph.trials.arm_messages import Load, Loaded, MadeGraph, Question, TargetWorkload, Warm, Warmed
from frx_graph.trials.arm_process import ArmError, ArmProcess
from frx_graph.trials.environment import TrialEnvironment
from frx_graph.trials.executor import Programs, Progress, TrialRun, run_trial
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.verdict import Outcome

TOGETHER = {"backward_layout": "propagate_layout"}
"""Rewrites that are tried with another: a layout is one decision, forward and backward."""
_PROPOSING_SECONDS = 1800.0

Answered = TypeVar("Answered")


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants tried."""

    workload: TargetWorkload
    train: bool
    inner: str
    candidate: str | None
    """A rewrite; None: all that measured times speak for, together."""
    against_itself: bool


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial, and what was made of which graph in it."""

    run: TrialRun
    graphs: tuple[MadeGraph, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All of them."""
        return tuple(candidate for graph in self.graphs for candidate in graph.applied)


def try_target(asked: Asked, policy: TrialPolicy, progress: Progress) -> Tried | None:
    """Run the trial; None where there is nothing to try. Raises `TrialError` where the program does not run, and
    `OptionError` for a rewrite that nothing speaks for."""
    base = Load(asked.workload, asked.train, asked.inner, policy.seed)
    graphs: tuple[MadeGraph, ...] = ()
    if not asked.against_itself:
        progress("asking for candidates")
        graphs = _proposed(base, ALL_REWRITES)
        if asked.candidate is not None:
            only = _only(asked.candidate, graphs)
            if set(only) != {candidate.rewrite for graph in graphs for candidate in graph.applied}:
                progress(f"asking for {asked.candidate} alone")
                graphs = _proposed(base, only)
        graphs = tuple(graph for graph in graphs if graph.applied)
        if not graphs:
            return None
    wanted = tuple(candidate for graph in graphs for candidate in graph.applied)
    programs = Programs(base, replace(base, candidates=wanted))
    return Tried(run_trial(programs, policy, start_arm, progress=progress), graphs)


def decisions(tried: Tried, policy: TrialPolicy, document: str, by: Author) -> tuple[Decision, ...]:
    """What a trial decides about each graph that something was made of, in an order in which it may be recorded."""
    environment = tried.run.environment
    if environment is None:
        return ()
    return tuple(
        decision for graph in tried.graphs for decision in _of_graph(graph, environment, tried, policy, document, by)
    )


def _of_graph(
    graph: MadeGraph, environment: TrialEnvironment, tried: Tried, policy: TrialPolicy, document: str, by: Author
) -> tuple[Decision, ...]:
    verdict = tried.run.verdict
    proposed = Decision(
        kind=Kind.PROPOSED,
        signature=graph.signature,
        environment=environment_key(environment.setup),
        plan=recorded_plan(graph.applied).hash,
        reason="measured times of single operators speak for it",
        decided_by=by.decided_by,
        host=by.host,
        process_id=by.process_id,
        recorded_at=datetime.now(UTC),
        policy=policy.hash,
        candidates=graph.applied,
    )
    after = replace(proposed, kind=Kind.TRIED, reason=verdict.reason, trial=document)
    return (proposed, after, replace(after, kind=_KINDS[verdict.outcome], trial=None))


_KINDS = {
    Outcome.PROMOTE: Kind.PROMOTED,
    Outcome.REJECT: Kind.REJECTED,
    Outcome.EQUIVALENT: Kind.REJECTED,
    Outcome.INCONCLUSIVE: Kind.INCONCLUSIVE,
}


def _only(name: str, graphs: Sequence[MadeGraph]) -> tuple[str, ...]:
    found = {TOGETHER.get(c.rewrite, c.rewrite) for graph in graphs for c in graph.applied}
    if name not in found:
        near = difflib.get_close_matches(name, found, n=1)
        known = f"candidates: {', '.join(sorted(found))}" if found else "nothing speaks for any rewrite here"
        raise OptionError(f"no candidate {name!r}", f"did you mean {near[0]!r}?" if near else known)
    return (name, *(rewrite for rewrite, other in TOGETHER.items() if other == name))


def _proposed(base: Load, rewrites: Sequence[str]) -> tuple[MadeGraph, ...]:
    """What measured times speak for, graph by graph, found in a process of its own."""
    try:
        with start_arm() as arm:
            _ask(arm, replace(base, proposes=tuple(rewrites)), Loaded)
            return _ask(arm, Warm(1), Warmed).graphs
    except ArmError as error:
        raise TrialError(f"the program does not run: {error}", "run it by itself first") from error


def _ask(arm: ArmProcess, question: Question, answered: type[Answered]) -> Answered:
    message = TypeAdapter(type(question)).dump_python(question, mode="json")
    return TypeAdapter(answered).validate_python(arm.ask(message, seconds=_PROPOSING_SECONDS))
