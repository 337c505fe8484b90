"""The autopilot on one network: run in a process of its own, its decisions read from its ledger and measured again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autopilot_case import Asked, Found, found_file, graph_folder
from autopilot_results import CaseResult, GraphResult, Measured, Tried, measured
from versus_arms import Inner

from frx_graph.autopilot.proposals import group_by_portion
from frx_graph.errors import FrxError, LedgerMissingError
from frx_graph.ledger.database.opening import open_to_read
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.ledger.location import LEDGER_VARIABLE, parse_location
from frx_graph.records import Candidate
from frx_graph.reports.trials.trial_document import TrialDocument, build_trial_document
from frx_graph.support.supervisor.process import extend_pythonpath
from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import GraphWorkload, Load
from frx_graph.trials.executor import run_trial
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import Programs

NOT_APPLIED = "something was promoted, and nothing is applied"
"""Which must not be, unless the process was ended in between."""
_PROGRAM = Path(__file__).parent / "autopilot_case.py"
_INTERRUPTED_SECONDS = 20.0
"""For a process that was interrupted to end what it has started."""


@dataclass(frozen=True)
class Job:
    """One network, and how it is to be run; `limit_seconds` is for all of it."""

    model: str
    train: bool
    batch: int
    device: str
    inner: Inner
    policy: TrialPolicy
    limit_seconds: float

    @property
    def title(self) -> str:
        return f"{self.model}{', training' if self.train else ''}, batch {self.batch}"


Retry = Callable[[str, tuple[Candidate, ...], tuple[Candidate, ...]], Measured | None]
"""A trial in fresh processes: of a graph with this signature, the first plan as baseline, the second as candidate."""


def measure(job: Job, progress: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> CaseResult:
    """All that is to be known of one network. Never raises for what happens in its processes."""
    began = now()
    deadline = began + job.limit_seconds
    with tempfile.TemporaryDirectory(prefix="frx-autopilot-") as name:
        folder = Path(name)
        progress(f"{job.title}: the autopilot")
        problems = list(_run(job, folder, job.limit_seconds))
        failed = bool(problems)
        file = found_file(folder)
        found = Found.model_validate_json(file.read_text()) if file.exists() else None
        if found is not None:
            problems += [*([found.error] if found.error else []), *found.warned]
            failed = failed or found.error is not None
        decisions = _decisions(folder)
        graphs = read_graphs(decisions, {} if found is None else found.graphs)
        plans = {decision.plan: decision.candidates for decision in decisions}

        def retry(signature: str, baseline: tuple[Candidate, ...], candidate: tuple[Candidate, ...]) -> Measured | None:
            left = min(job.policy.time_budget_seconds, deadline - now())
            if left <= 0 or not graph_folder(folder, signature).exists():
                return None
            train = next(_document(one).train for one in decisions if one.signature == signature and one.trial)
            try:
                return _trial(job, folder, signature, train, baseline, candidate, left, progress)
            except FrxError as error:
                problems.append(f"measured again: {error}")
                return None

        again = tuple(measured_again(graph, plans, retry) for graph in graphs)
        failed = failed or any(graph.problem == NOT_APPLIED for graph in again)
    return CaseResult(job.title, again, round(now() - began, 1), tuple(problems), failed)


def read_graphs(decisions: Sequence[Decision], travelled: Mapping[str, str | None]) -> Iterator[GraphResult]:
    """What was tried and is applied, graph by graph. `travelled` are the signatures of those that were compiled, with
    why they could not be tried in another process, if so."""
    reasons = dict(travelled)
    for signature in dict.fromkeys((*reasons, *(one.signature for one in decisions))):
        own = [one for one in decisions if one.signature == signature]
        tried = tuple(_tried(one) for one in own if one.kind is Kind.TRIED and one.trial is not None)
        applied = [one.plan for one in own if one.kind is Kind.APPLIED]
        problem = reasons.get(signature)
        if problem is None and not tried:
            problem = "measured times speak for no rewrite" if own else "nothing was decided"
        if any(one.promoted for one in tried) and not applied:
            problem = NOT_APPLIED
        yield GraphResult(signature, tried, applied[-1] if applied else None, problem=problem)


def measured_again(graph: GraphResult, plans: dict[str, tuple[Candidate, ...]], retry: Retry) -> GraphResult:
    """The graph with each promotion tried again, and, where it has to be, the best single candidate against what is
    applied."""
    tried = tuple(
        replace(one, again=retry(graph.signature, (), plans[one.plan])) if one.promoted else one for one in graph.tried
    )
    best = graph.best_single
    if not graph.needs_duel or best is None:
        return replace(graph, tried=tried)
    final = () if graph.final is None else plans[graph.final]
    return replace(graph, tried=tried, duel=retry(graph.signature, final, plans[best.plan]))


def _tried(decision: Decision) -> Tried:
    candidates = decision.candidates
    known = [one.predicted_seconds for one in candidates if one.predicted_seconds is not None]
    return Tried(
        plan=decision.plan,
        names=tuple(group_by_portion(candidates)),
        # A sum with an unknown part is unknown.
        predicted_seconds=sum(known) if len(known) == len(candidates) else None,
        unpriced=tuple(dict.fromkeys(one.rewrite for one in candidates if one.predicted_seconds is None)),
        trial=measured(_document(decision)),
    )


def _document(decision: Decision) -> TrialDocument:
    return TrialDocument.model_validate_json(decision.trial or "")


def _run(job: Job, folder: Path, seconds: float) -> Iterator[str]:
    """Run the network under the autopilot; a line for each thing that goes wrong with its process."""
    asked = Asked(
        model=job.model,
        train=job.train,
        batch=job.batch,
        device=job.device,
        inner=job.inner,
        policy=job.policy.model_dump(mode="json"),
        folder=folder,
    )
    environment = {**os.environ, **extend_pythonpath(), LEDGER_VARIABLE: str(_ledger(folder))}
    # In a group of its own: what ends it does not end this process.
    process = subprocess.Popen(
        [sys.executable, str(_PROGRAM), asked.model_dump_json()], env=environment, start_new_session=True
    )
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        yield f"it was not finished after {seconds:.0f} s"
        return
    finally:
        _end(process)
    if code:
        yield f"its process ended with code {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs with all that it has started: it stops its arms when it is interrupted, and those
    end by themselves when it is killed."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(_INTERRUPTED_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def _ledger(folder: Path) -> Path:
    return folder / "ledger.sqlite3"


def _decisions(folder: Path) -> list[Decision]:
    try:
        events = open_to_read(parse_location(str(_ledger(folder)))).read_events()
    except LedgerMissingError:
        return []
    return [event.decision for event in events]


def _trial(
    job: Job,
    folder: Path,
    signature: str,
    train: bool,
    baseline: tuple[Candidate, ...],
    candidate: tuple[Candidate, ...],
    seconds: float,
    progress: Callable[[str], None],
) -> Measured:
    """Under the same rule, with another order of blocks. Raises `TrialError` where the baseline does not run."""
    policy = job.policy.model_copy(update={"seed": job.policy.seed + 1, "time_budget_seconds": seconds})
    base = Load(GraphWorkload(str(graph_folder(folder, signature))), train, job.inner.value, job.policy.seed)
    programs = Programs(replace(base, candidates=baseline), replace(base, candidates=candidate))
    against = "what is applied" if baseline else "the baseline"
    name = " + ".join(group_by_portion(candidate))
    run = run_trial(
        programs, policy, start_arm, progress=lambda stage: progress(f"{job.title}: {name} against {against}: {stage}")
    )
    document = build_trial_document(
        run,
        target=f"graph {signature}",
        train=train,
        inner=job.inner.value,
        candidates=candidate,
        policy=policy,
        decision="not recorded",
    )
    return measured(document)
