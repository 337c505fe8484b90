"""Turn a trial into ledger events: proposed, tried, and the verdict."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime

from frx_graph.compiler.code_fingerprint import compute_environment_key
from frx_graph.compiler.plans import make_recorded_plan
from frx_graph.ledger.decision import Author, Decision, Kind, format_reason
from frx_graph.passes.inner_choice import NAME as INNER_CHOICE
from frx_graph.records import Candidate
from frx_graph.trials.environment_record import TrialEnvironment
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.verdict import Outcome, Verdict

_KINDS = {
    Outcome.PROMOTE: Kind.PROMOTED,
    Outcome.REJECT: Kind.REJECTED,
    Outcome.EQUIVALENT: Kind.REJECTED,
    Outcome.INCONCLUSIVE: Kind.INCONCLUSIVE,
}
_TIMES = "measured times of single operators favour it"
_TRIAL_ONLY = "only a trial can tell which inner compiler is fastest"


def decide_graph(
    signature: str,
    candidates: tuple[Candidate, ...],
    verdict: Verdict,
    *,
    environment: TrialEnvironment,
    policy: TrialPolicy,
    document: str,
    by: Author,
    others: int = 0,
) -> tuple[Decision, ...]:
    """Return the events in order, for one append. If there are `others`, plans in the same trial whose document is
    `document`, the verdict is about all of them, and no verdict event follows for one."""
    reason = format_reason(verdict.reason)
    why = _TRIAL_ONLY if any(one.rewrite == INNER_CHOICE for one in candidates) else _TIMES
    proposed = _propose(signature, compute_environment_key(environment.setup), policy, why, by, candidates)
    tried = replace(proposed, kind=Kind.TRIED, reason=reason, trial=document)
    if others:
        said = f"together with {others} more, so this one is not judged: {verdict.outcome.value}, {reason}"
        return (proposed, replace(tried, reason=format_reason(said)))
    return (proposed, tried, replace(tried, kind=_KINDS[verdict.outcome], trial=None))


def decide_search(
    signature: str, environment: str, policy: TrialPolicy, kind: Kind, reason: str, *, by: Author
) -> tuple[Decision, ...]:
    """Return the events that end the search for a graph's plan without a trial, about the empty plan: rejected if
    nothing is left to try, inconclusive if the time is over."""
    proposed = _propose(signature, environment, policy, reason, by)
    return (proposed, replace(proposed, kind=Kind.TRIED), replace(proposed, kind=kind))


def _propose(
    signature: str,
    environment: str,
    policy: TrialPolicy,
    reason: str,
    by: Author,
    candidates: tuple[Candidate, ...] = (),
) -> Decision:
    return Decision(
        kind=Kind.PROPOSED,
        signature=signature,
        environment=environment,
        plan=make_recorded_plan(candidates).hash,
        reason=reason,
        recorded_at=datetime.now(UTC),
        policy=policy.hash,
        candidates=candidates,
        **asdict(by),
    )
