"""Try the rewrites that measured times favour in a graph before it is compiled, and return the proven ones.

Each rewrite is tried alone, the most promising first. So is each other way to compile the graph: by another inner
compiler, or with other options. Promoted rewrites are used together only after a trial of all of them. Trials run in
other processes, which read the graph from a file; a graph that cannot be written is tried in this process.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.autopilot.proposals import (
    apply_choice,
    find_choices,
    find_known_portion,
    group_by_portion,
    list_rewrites,
    propose_rewrites,
)
from frx_graph.autopilot.search_log import SearchLog
from frx_graph.autopilot.trial_decisions import decide_graph, decide_search
from frx_graph.capture.call_site import parse_stack_trace
from frx_graph.compiler.plans import ALL_REWRITES, filter_by_risk, make_recorded_plan
from frx_graph.distributed.consensus import has_several_ranks
from frx_graph.errors import SerializationError, TrialError
from frx_graph.ledger.decision import AUTOPILOT, Decision, Kind, make_process_author
from frx_graph.measure.machine.busy_programs import sample_machine_load
from frx_graph.options import BackendOptions
from frx_graph.passes.inner_choice import POOLED, freezes_weights, pools_memory
from frx_graph.records import Candidate
from frx_graph.reports.render.document import to_json
from frx_graph.reports.trials.trial_document import build_trial_document
from frx_graph.support.allocator import may_pool
from frx_graph.support.supervisor.process import unwind_on_termination
from frx_graph.trial_worker.graph_file import hold_graph, write_graph
from frx_graph.trial_worker.in_process import InProcessArms
from frx_graph.trial_worker.launch import WarmArms
from frx_graph.trials.arm_messages import GraphWorkload, Load, MadeGraph
from frx_graph.trials.executor import run_trial
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import Programs, Progress
from frx_graph.trials.trial_run import TrialRun
from frx_graph.trials.verdict import Outcome
from frx_graph.trials.worker_client import StartArm

_SAMPLE_SECONDS = 0.5
"""Time in which other programs are watched before the first trial."""
_WHEN_BUSY = "wait: an open candidate is tried again after a day"
"""Advice for a trial that a busy machine leaves open."""
Record = Callable[[Sequence[Decision]], object]
"""Keeps decisions, all or none."""


@dataclass(frozen=True, slots=True)
class _RecordedTrial:
    name: str
    candidates: tuple[Candidate, ...]
    run: TrialRun

    @property
    def promoted(self) -> bool:
        return self.run.own_verdict.outcome is Outcome.PROMOTE

    @property
    def promoted_somewhere(self) -> bool:
        """Promoted under this process's allocation of memory, or with pooled memory alone."""
        return self.run.verdict.outcome is Outcome.PROMOTE

    @property
    def ratio(self) -> float:
        return self.run.own_ratio or 0.0


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
    seconds: float | None = None,
    log: SearchLog | None = None,
) -> tuple[Candidate, ...]:
    """Return the candidates that were proved for `dynamo`, with its real `inputs`, within `seconds`; empty if there is
    none. Each trial's decision goes to `record` at once, and in the end that of the search, under this `environment`.
    So whenever this process ends, the last promoted plan is the fastest one that was proved. Plans whose hash is in
    `rejected` are not tried again. The `log` gets each trial, and the end. Raises `SerializationError` if the graph can
    be tried neither in another process nor in this one, `TrialError` if it does not run there, and the errors
    of `record`: once a plan was rejected meanwhile, later ones are not promoted."""
    seconds = policy.time_budget_seconds if seconds is None else seconds
    deadline = time.monotonic() + seconds
    log = SearchLog(signature, seconds) if log is None else log
    with contextlib.ExitStack() as stack:
        stack.enter_context(unwind_on_termination())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="frx-graph-"))
        arms = _make_arms(Path(folder), dynamo, inputs, policy, stack)
        train = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in inputs)
        base = Load(
            GraphWorkload(folder),
            train,
            options.inner,
            policy.seed,
            options.inner_mode,
            pool=not arms.in_process and may_pool(),
        )
        progress("asking for candidates")
        kept = _DecisionRecorder(signature, _describe_place(dynamo), options.inner, train, policy, record)
        kind, reason = Kind.REJECTED, "all was tried that measured times favour, or that may matter"
        try:
            search = _GraphSearch(base, arms, policy, deadline, progress, log)
            if not search.names:
                reason = "measured times favour no rewrite, and no other way to compile it may matter"
            for trial in search.run_trials(rejected):
                kept.record_trial(trial)
                log.note_departure(trial.run.departure)
                log.note_trial(trial.name, trial.run.own_verdict, trial.run.own_ratio)
        except _BudgetEndedError:
            kind, reason = Kind.INCONCLUSIVE, "the time budget ended before all was tried"
        by = make_process_author(AUTOPILOT)
        record(decide_search(signature, environment, policy, kind, reason, by=by))
        log.finish(reason, complete=kind is not Kind.INCONCLUSIVE)
    return () if kept.promotion is None else kept.promotion.candidates


class _BudgetEndedError(Exception):
    """The time is over before all was tried."""


class _GraphSearch:
    """Tries the rewrites and compilers of one graph in order; `names` are those tried alone."""

    def __init__(
        self,
        base: Load,
        arms: _GraphArms,
        policy: TrialPolicy,
        deadline: float,
        progress: Progress,
        log: SearchLog,
    ) -> None:
        self._base = base
        self._arms = arms
        self._policy = policy
        self._deadline = deadline
        self._progress = progress
        self._log = log
        self._looked = False
        self._graph = _get_only_graph(self._propose((), arms.rewrites))
        self._portions = group_by_portion(self._graph.applied)
        self._choices = find_choices([self._graph], policy.risk, isolated=not arms.in_process)
        predicted = [name for name, seconds in self._portions.items() if seconds > 0]
        # Candidates without a prediction come last, except those that may change the whole program.
        self.names = tuple(dict.fromkeys((*predicted, *self._choices, *self._portions)))

    def run_trials(self, rejected: Collection[str]) -> Iterator[_RecordedTrial]:
        """Run the trials one after the other. Their results decide the last trial. Plans whose hash is in `rejected`
        are left out. Raises `_BudgetEndedError` if the time is over before all was tried."""
        kept: list[str] = []
        self._log.start(self.names, self._get_remaining_seconds())
        for name in self.names:
            alone = self._propose_names([name])
            if not alone:
                self._log.note_skipped(name, "measured times do not favour it alone")
                continue
            if make_recorded_plan(alone).hash in rejected:
                self._log.note_skipped(name, "it was rejected before")
                continue
            trial = self._run_trial(alone, name)
            if trial.promoted_somewhere and (name in self._portions or (name == POOLED and trial.promoted)):
                kept.append(name)
            yield trial
        if len(kept) > 1:
            together = self._propose_together(kept)
            if together and make_recorded_plan(together).hash not in rejected:
                yield self._run_trial(together, " and ".join(kept))

    def _propose_names(self, names: Sequence[str]) -> tuple[Candidate, ...]:
        """Return the candidates of one compiler, or of these rewrites, which no proposal so far may show."""
        if (choice := self._choices.get(names[0])) is not None:
            return _get_only_graph(apply_choice(choice, [self._graph], self._arms.rewrites, self._propose)).applied
        known = find_known_portion(self._graph.applied, names[0]) if len(names) == 1 else None
        if known is not None:
            return known
        if len(names) == len(self._portions):
            return self._graph.applied
        rewrites = [rewrite for name in names for rewrite in list_rewrites(name)]
        return _get_only_graph(self._propose((), rewrites)).applied

    def _propose_together(self, names: Sequence[str]) -> tuple[Candidate, ...]:
        rewrites = self._propose_names([name for name in names if name != POOLED])
        return (self._choices[POOLED], *rewrites) if POOLED in names else rewrites

    def _propose(self, choice: tuple[Candidate, ...], rewrites: Sequence[str]) -> tuple[MadeGraph, ...]:
        try:
            return propose_rewrites(
                replace(self._base, candidates=choice), rewrites, self._get_remaining_seconds(), self._arms.start
            )
        except TrialError:
            # The budget may have been too short for an answer.
            self._get_remaining_seconds()
            raise

    def _run_trial(self, candidates: tuple[Candidate, ...], name: str) -> _RecordedTrial:
        if not self._looked and self._log.is_shown:
            self._looked = True
            if (load := sample_machine_load(_SAMPLE_SECONDS)) is not None:
                self._log.note_load(load)
        run = run_trial(
            Programs(self._base, replace(self._base, candidates=candidates), freezes_weights(candidates)),
            self._policy.model_copy(update={"time_budget_seconds": self._get_remaining_seconds()}),
            self._arms.start,
            # The combination is one more.
            candidates=len(self.names) + (len(self._portions) + (POOLED in self._choices) > 1),
            in_process=self._arms.in_process,
            pools=pools_memory(candidates),
            when_busy=_WHEN_BUSY,
            progress=lambda stage: self._progress(f"{name}: {stage}"),
        )
        return _RecordedTrial(name, candidates, run)

    def _get_remaining_seconds(self) -> float:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise _BudgetEndedError
        return seconds


@dataclass(frozen=True, slots=True)
class _GraphArms:
    start: StartArm
    rewrites: tuple[str, ...]
    in_process: bool = False


def _make_arms(
    folder: Path, dynamo: fx.GraphModule, inputs: Sequence[Any], policy: TrialPolicy, stack: contextlib.ExitStack
) -> _GraphArms:
    """Return the arms: other processes if the graph can be sent, else this process if the policy allows the risk."""
    try:
        write_graph(folder, dynamo, inputs)
    except SerializationError as cannot:
        if has_several_ranks():
            # A collective in the graph would wait for the other ranks, which wait for this one.
            raise
        rewrites = filter_by_risk(ALL_REWRITES, policy.risk, isolated=False)
        if not rewrites:
            hint = "a policy with risk MEDIUM lets it be tried in this process"
            raise SerializationError(
                f"{cannot.message}, and risk LOW allows no trial in this process", hint
            ) from cannot
        held = stack.enter_context(InProcessArms(hold_graph(folder, dynamo, inputs)))
        return _GraphArms(held.start, rewrites, in_process=True)
    return _GraphArms(stack.enter_context(WarmArms()).start, filter_by_risk(ALL_REWRITES, policy.risk))


def _describe_place(dynamo: fx.GraphModule) -> str:
    """Return the function that the graph's first operator is in, with file and line."""
    sites = (parse_stack_trace(node.stack_trace) for node in dynamo.graph.nodes if node.op.startswith("call"))
    site = next((site for site in sites if site.line), None)
    return "a graph without known lines" if site is None else f"{site.function} at {Path(site.file).name}:{site.line}"


def _get_only_graph(graphs: Sequence[MadeGraph]) -> MadeGraph:
    if len(graphs) != 1:
        raise TrialError(f"the graph became {len(graphs)} graphs in another process")
    return graphs[0]


@dataclass(slots=True)
class _DecisionRecorder:
    """Records the decisions of one graph's trials as soon as they are known."""

    signature: str
    target: str
    inner: str
    train: bool
    policy: TrialPolicy
    record: Record
    ratio: float = 0.0
    """Median of baseline time over candidate time, of the fastest plan so far."""
    promotion: Decision | None = None
    """That of the fastest plan so far."""

    def record_trial(self, trial: _RecordedTrial) -> None:
        """Record a trial. The last promoted plan is active, so after a slower one the fastest is promoted once more, in
        the same append."""
        decisions = self._make_decisions(trial)
        if not trial.promoted or not decisions:
            self.record(decisions)
        elif self.promotion is None or trial.ratio >= self.ratio:
            self.record(decisions)
            self.promotion, self.ratio = decisions[-1], trial.ratio
        else:
            reason = f"once more, so that it is active: the fastest plan promoted so far, {self.ratio:.3f}"
            by, now = make_process_author(AUTOPILOT), datetime.now(UTC)
            again = self.promotion.make_follow_up(Kind.PROMOTED, reason=reason, by=by, at=now, policy=self.policy.hash)
            self.record((*decisions, again))

    def _make_decisions(self, trial: _RecordedTrial) -> tuple[Decision, ...]:
        if trial.run.environment is None:
            return ()
        document = build_trial_document(
            trial.run,
            target=self.target,
            train=self.train,
            inner=self.inner,
            candidates=trial.candidates,
            policy=self.policy,
            decision="recorded by the autopilot",
        )
        text = json.dumps(to_json(document), allow_nan=False)
        # For processes like this one alone: the others' autopilot tries by itself.
        own = trial.run.list_verdicts()[-1]
        return decide_graph(
            self.signature,
            trial.candidates,
            own.verdict,
            environment=own.environment,
            policy=self.policy,
            document=text,
            by=make_process_author(AUTOPILOT),
        )
