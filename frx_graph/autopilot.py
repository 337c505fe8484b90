"""Tries what measured times speak for in a graph that is about to be compiled, and says what has been proved.

Each rewrite is tried alone, the most promising first; what was promoted is tried together, and used together only then.
Everything happens in other processes, to which the graph travels as a file; what cannot travel is tried in this one.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch import distributed as dist

from frx_graph.arms import start_arm
from frx_graph.current_plan import ALL_REWRITES, recorded_plan
from frx_graph.errors import TravelError, TrialError
from frx_graph.graph_file import hold_graph, write_graph
from frx_graph.in_process_arm import InProcessArms, allowed_in_process
from frx_graph.ledger.author import this_process
from frx_graph.ledger.decision import AUTOPILOT, Decision
from frx_graph.options import BackendOptions
from frx_graph.proposals import known_alone, portions, proposed, rewrites_of
from frx_graph.records import Candidate
from frx_graph.reports.trial_document import as_json, trial_document
from frx_graph.termination import cleaned_up_when_terminated
from frx_graph.trial_decisions import decisions_about, decisions_against
from frx_graph.trials.arm_messages import GraphWorkload, Load, MadeGraph
from frx_graph.trials.executor import Programs, Progress, StartArm, TrialRun, run_trial
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.verdict import Outcome

Record = Callable[[Sequence[Decision]], object]
"""Keeps decisions, all or none."""


@dataclass(frozen=True, slots=True)
class _Trial:
    candidates: tuple[Candidate, ...]
    run: TrialRun

    @property
    def promoted(self) -> bool:
        return self.run.verdict.outcome is Outcome.PROMOTE

    @property
    def ratio(self) -> float:
        return 0.0 if self.run.verdict.statistics is None else self.run.verdict.statistics.ratio_median


def try_graph(
    dynamo: fx.GraphModule,
    inputs: Sequence[Any],
    options: BackendOptions,
    policy: TrialPolicy,
    *,
    signature: str,
    environment: str,
    record: Record,
    progress: Progress,
    rejected: frozenset[str] = frozenset(),
) -> tuple[Candidate, ...]:
    """The candidates that were proved for `dynamo`, with its real `inputs`; none where nothing was. What each trial has
    decided about the graph with this signature goes to `record`, what is promoted in the order in which the last is the
    one to use; that nothing was to be tried, too, under this `environment`. Plans whose hash is in `rejected` are not
    tried again.

    Raises `TravelError` where the graph cannot be tried in another process, nor in this one, `TrialError` where it does
    not run there, and what `record` raises.
    """
    deadline = time.monotonic() + policy.time_budget_seconds
    with contextlib.ExitStack() as stack:
        stack.enter_context(cleaned_up_when_terminated())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="frx-graph-"))
        arms = _arms(Path(folder), dynamo, inputs, policy, stack)
        train = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in inputs)
        base = Load(GraphWorkload(folder), train, options.inner, policy.seed, options.inner_mode)
        progress("asking for candidates")
        everything = _made(proposed(base, arms.rewrites, policy.time_budget_seconds, arms.start))
        if not everything:
            record(decisions_against(signature, environment, policy, by=this_process(AUTOPILOT)))
            return ()
        names = portions(everything)
        # The combination is one more.
        count = len(names) + (len(names) > 1)
        promoted: list[_Trial] = []
        kept: list[str] = []

        def left() -> float:
            return max(1.0, deadline - time.monotonic())

        def asked(rewrites: Sequence[str]) -> tuple[Candidate, ...]:
            """None, too, where the budget ends before they are known."""
            try:
                return _made(proposed(base, rewrites, left(), arms.start))
            except TrialError:
                if time.monotonic() >= deadline:
                    return ()
                raise

        def tried(candidates: tuple[Candidate, ...], name: str) -> _Trial:
            budget = policy.model_copy(update={"time_budget_seconds": left()})
            programs = Programs(base, replace(base, candidates=candidates))
            run = run_trial(
                programs,
                budget,
                arms.start,
                candidates=count,
                in_process=arms.in_process,
                progress=lambda stage: progress(f"{name}: {stage}"),
            )
            trial = _Trial(candidates, run)
            if trial.promoted:
                promoted.append(trial)
            else:
                record(_decisions(trial, signature, options.inner, train, policy))
            return trial

        try:
            for name in names:
                if time.monotonic() >= deadline:
                    break
                alone = known_alone(everything, name)
                alone = asked(rewrites_of(name)) if alone is None else alone
                if alone and recorded_plan(alone).hash not in rejected and tried(alone, name).promoted:
                    kept.append(name)
            if len(kept) > 1 and time.monotonic() < deadline:
                rewrites = [rewrite for name in kept for rewrite in rewrites_of(name)]
                together = everything if len(kept) == len(names) else asked(rewrites)
                if together and recorded_plan(together).hash not in rejected:
                    tried(together, " and ".join(kept))
        finally:
            # Also where a later trial could not be run: what was proved stays proved.
            promoted.sort(key=lambda trial: trial.ratio)
            for trial in promoted:
                record(_decisions(trial, signature, options.inner, train, policy))
    return promoted[-1].candidates if promoted else ()


@dataclass(frozen=True, slots=True)
class _Arms:
    start: StartArm
    rewrites: tuple[str, ...]
    in_process: bool = False


def _arms(
    folder: Path, dynamo: fx.GraphModule, inputs: Sequence[Any], policy: TrialPolicy, stack: contextlib.ExitStack
) -> _Arms:
    """How the graph is tried: in other processes if it can travel, else in this one, if the policy allows the risk."""
    try:
        write_graph(folder, dynamo, inputs)
    except TravelError as cannot:
        if _one_of_several_ranks():
            # A collective of the graph would wait for the others, who wait for this rank.
            raise
        rewrites = allowed_in_process(ALL_REWRITES, policy.risk)
        if not rewrites:
            hint = "a policy with risk MEDIUM lets it be tried in this process"
            raise TravelError(f"{cannot.message}, and risk LOW allows no trial in this process", hint) from cannot
        held = stack.enter_context(InProcessArms(hold_graph(folder, dynamo, inputs)))
        return _Arms(held.start, rewrites, in_process=True)
    return _Arms(start_arm, ALL_REWRITES)


def _one_of_several_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _made(graphs: Sequence[MadeGraph]) -> tuple[Candidate, ...]:
    if len(graphs) != 1:
        raise TrialError(f"the graph became {len(graphs)} graphs in another process")
    return graphs[0].applied


def _decisions(trial: _Trial, signature: str, inner: str, train: bool, policy: TrialPolicy) -> tuple[Decision, ...]:
    if trial.run.environment is None:
        return ()
    document = trial_document(
        trial.run,
        target=f"graph {signature}",
        train=train,
        inner=inner,
        candidates=trial.candidates,
        policy=policy,
        decision="recorded by the autopilot",
    )
    return decisions_about(
        signature,
        trial.candidates,
        trial.run.verdict,
        environment=trial.run.environment,
        policy=policy,
        document=json.dumps(as_json(document), allow_nan=False),
        by=this_process(AUTOPILOT),
    )
