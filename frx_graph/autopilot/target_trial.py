"""Try a target: ask for candidates, run a trial of all of them or one, and record it. Also the matrix of such
trials."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from frx_graph.autopilot.proposals import apply_choice, find_choices, group_by_portion, list_rewrites, propose_rewrites
from frx_graph.autopilot.trial_decisions import decide_graph
from frx_graph.compiler.plans import ALL_REWRITES, filter_by_risk, make_recorded_plan
from frx_graph.errors import OptionError, TrialError, suggest_name
from frx_graph.ledger.decision import Author, Decision
from frx_graph.passes.inner_choice import CHOICES, freezes_weights, pools_memory
from frx_graph.records import Candidate, Risk
from frx_graph.reports.trials.trial_report import format_shape
from frx_graph.support.allocator import may_pool
from frx_graph.trial_worker.launch import open_warm_arms
from frx_graph.trials.arm_messages import Load, MadeGraph, TargetWorkload
from frx_graph.trials.baseline_check import compare_with_eager
from frx_graph.trials.executor import run_trial
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import Programs, Progress
from frx_graph.trials.trial_run import EagerComparison, EnvironmentVerdict, TrialRun
from frx_graph.trials.verdict import Outcome
from frx_graph.trials.worker_client import StartArm

Propose = Callable[[Load, Sequence[str]], tuple[MadeGraph, ...]]
"""Takes a program and rewrites; returns those that measured times favour."""
_NAMES = frozenset({*ALL_REWRITES, *(choice.name for choice in CHOICES)})
_LEAST_SECONDS = 1.0
"""The least time for a trial. If the time budget has just ended, the trial reports it."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """The request for a trial."""

    workload: TargetWorkload
    train: bool
    inner: str
    candidate: str | None
    """A rewrite, or another way to compile the program; None: all that measured times favour, together."""
    against_itself: bool
    candidates: int = 1
    """The number of trials of this program, by which alpha is divided."""
    ignore_load: bool = False
    """True if measurements beside other programs count."""


@dataclass(frozen=True, slots=True)
class TargetTrial:
    """A trial, and the plan of each graph in it."""

    run: TrialRun
    graphs: tuple[MadeGraph, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All of them, each once."""
        return _collect_candidates(self.graphs)

    @property
    def plans(self) -> frozenset[tuple[str, str]]:
        """The signatures of the graphs, each with its plan."""
        return frozenset((graph.signature, make_recorded_plan(graph.applied).hash) for graph in self.graphs)

    @property
    def promotes(self) -> bool:
        """True if the result may be applied in processes like this one: of several graphs, one may have become
        slower."""
        return self.run.own_verdict.outcome is Outcome.PROMOTE and len(self.plans) < 2


@dataclass(frozen=True, slots=True)
class UntriedTarget:
    """A target with nothing to try."""

    compared: EagerComparison
    """The compiled program beside eager."""


def try_target(asked: TrialRequest, policy: TrialPolicy, progress: Progress) -> TargetTrial | UntriedTarget:
    """Run the trial; if there is nothing to try, only compare the compiled program with eager. All of it together has
    the policy's time budget.

    Raises `TrialError` if the program does not run, or the budget ends before there is something to try, and
    `OptionError` for a candidate that is not proposed."""
    deadline = time.monotonic() + policy.time_budget_seconds
    with open_warm_arms() as arms:
        return _try_target(asked, policy, progress, arms.start, deadline)


def _try_target(
    asked: TrialRequest, policy: TrialPolicy, progress: Progress, start: StartArm, deadline: float
) -> TargetTrial | UntriedTarget:
    propose = functools.partial(_propose, deadline, start)
    base = Load(asked.workload, asked.train, asked.inner, policy.seed, pool=may_pool())
    graphs: tuple[MadeGraph, ...] = ()
    if not asked.against_itself:
        progress("asking for candidates")
        rewrites = filter_by_risk(ALL_REWRITES, policy.risk)
        graphs = propose(base, rewrites)
        if asked.candidate is not None:
            progress(f"asking for {asked.candidate} alone")
            graphs = _select_candidate(asked.candidate, base, graphs, rewrites, policy.risk, propose)
        graphs = tuple(graph for graph in graphs if graph.applied)
    rest = policy.model_copy(update={"time_budget_seconds": _get_remaining_seconds(deadline)})
    if not graphs and not asked.against_itself:
        progress("nothing to try; comparing the compiled program with eager")
        return UntriedTarget(compare_with_eager(base, rest, start))
    candidates = _collect_candidates(graphs)
    programs = Programs(base, replace(base, candidates=candidates), freezes_weights(candidates))
    run = run_trial(
        programs,
        rest,
        start,
        candidates=asked.candidates,
        ignore_load=asked.ignore_load,
        pools=pools_memory(candidates),
        progress=progress,
    )
    return TargetTrial(run, graphs)


def _get_remaining_seconds(deadline: float) -> float:
    return max(_LEAST_SECONDS, deadline - time.monotonic())


def _propose(deadline: float, start: StartArm, base: Load, rewrites: Sequence[str]) -> tuple[MadeGraph, ...]:
    try:
        return propose_rewrites(base, rewrites, _get_remaining_seconds(deadline), start)
    except TrialError as error:
        if time.monotonic() < deadline:
            raise
        raise TrialError(
            "the time budget ended before there was something to try", "raise time_budget_seconds"
        ) from error


def make_decisions(
    tried: TargetTrial, found: EnvironmentVerdict, policy: TrialPolicy, document: str, by: Author
) -> tuple[Decision, ...]:
    """Return the decisions for one environment about each graph that was rewritten; of several graphs, only that they
    were tried."""
    return tuple(
        decision
        for graph in tried.graphs
        for decision in decide_graph(
            graph.signature,
            graph.applied,
            found.verdict,
            environment=found.environment,
            policy=policy,
            document=document,
            by=by,
            others=len(tried.plans) - 1,
        )
    )


def _collect_candidates(graphs: Sequence[MadeGraph]) -> tuple[Candidate, ...]:
    return tuple(dict.fromkeys(candidate for graph in graphs for candidate in graph.applied))


def _select_candidate(
    name: str,
    base: Load,
    graphs: tuple[MadeGraph, ...],
    rewrites: tuple[str, ...],
    risk: Risk,
    propose: Propose,
) -> tuple[MadeGraph, ...]:
    """Return the proposal for `name` alone. `graphs` comes from the proposal for all names."""
    if name in _NAMES and not filter_by_risk((name,), risk):
        raise OptionError(f"candidate {name!r} is of a higher risk than the policy allows", f"risk is {risk}: raise it")
    choices = find_choices(graphs, risk)
    if name in choices:
        return apply_choice(
            choices[name], graphs, rewrites, lambda made, only: propose(replace(base, candidates=made), only)
        )
    found = group_by_portion(_collect_candidates(graphs))
    if name not in found:
        known = sorted({*found, *choices})
        hint = suggest_name(name, known, "candidates") if known else "measured times favour no rewrite here"
        raise OptionError(f"no candidate {name!r}", hint)
    return graphs if len(found) == 1 else propose(base, list_rewrites(name))


@dataclass(frozen=True, slots=True)
class TrialJob:
    """One trial of a target: a `Job`."""

    asked: TrialRequest
    policy: TrialPolicy

    @property
    def label(self) -> str:
        """The trial's place in the matrix."""
        workload = self.asked.workload
        named = (workload.target, format_shape(dict(workload.shape)), workload.dtype, self.asked.candidate)
        return " ".join(filter(None, named))

    def __call__(self, progress: Progress) -> TargetTrial | UntriedTarget:
        """Run the trial, like `try_target`."""
        return try_target(self.asked, self.policy, progress)


def build_matrix(
    targets: Sequence[str],
    shapes: Sequence[tuple[tuple[str, int], ...]],
    dtypes: Sequence[str | None],
    candidates: Sequence[str | None],
    *,
    device: str | None,
    train: bool,
    inner: str,
    against_itself: bool,
    policy: TrialPolicy,
    ignore_load: bool = False,
) -> tuple[TrialJob, ...]:
    """Return all combinations without duplicates; each trial has the full time budget. Without shapes or types, the
    target's are used. The candidate None, which is the default, stands for all rewrites that measured times favour."""
    tried = tuple(dict.fromkeys(candidates)) or (None,)
    return tuple(
        TrialJob(
            TrialRequest(
                TargetWorkload(target, device, dtype, shape),
                train,
                inner,
                candidate,
                against_itself,
                len(tried),
                ignore_load,
            ),
            policy,
        )
        for target, shape, dtype, candidate in itertools.product(
            dict.fromkeys(targets), dict.fromkeys(shapes or ((),)), dict.fromkeys(dtypes or (None,)), tried
        )
    )
