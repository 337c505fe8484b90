"""The trial of what a target returns: candidates are asked for, tried together or one rewrite alone, and recorded."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from frx_graph.arms import start_arm
from frx_graph.current_plan import ALL_REWRITES
from frx_graph.errors import OptionError
from frx_graph.ledger.author import Author
from frx_graph.ledger.decision import Decision
from frx_graph.proposals import portions, proposed, rewrites_of
from frx_graph.records import Candidate
from frx_graph.trial_decisions import decisions_about
from frx_graph.trials.arm_messages import Load, MadeGraph, TargetWorkload
from frx_graph.trials.executor import Programs, Progress, TrialRun, run_trial
from frx_graph.trials.policy import TrialPolicy


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
        graphs = proposed(base, ALL_REWRITES)
        if asked.candidate is not None:
            only = _only(asked.candidate, graphs)
            if set(only) != {candidate.rewrite for graph in graphs for candidate in graph.applied}:
                progress(f"asking for {asked.candidate} alone")
                graphs = proposed(base, only)
        graphs = tuple(graph for graph in graphs if graph.applied)
        if not graphs:
            return None
    wanted = tuple(candidate for graph in graphs for candidate in graph.applied)
    programs = Programs(base, replace(base, candidates=wanted))
    return Tried(run_trial(programs, policy, start_arm, progress=progress), graphs)


def decisions(tried: Tried, policy: TrialPolicy, document: str, by: Author) -> tuple[Decision, ...]:
    """What a trial decides about each graph that something was made of."""
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
        )
    )


def _only(name: str, graphs: Sequence[MadeGraph]) -> tuple[str, ...]:
    found = portions([candidate for graph in graphs for candidate in graph.applied])
    if name not in found:
        near = difflib.get_close_matches(name, found, n=1)
        known = f"candidates: {', '.join(sorted(found))}" if found else "nothing speaks for any rewrite here"
        raise OptionError(f"no candidate {name!r}", f"did you mean {near[0]!r}?" if near else known)
    return rewrites_of(name)
