"""Turn the trial of a change of the source into ledger events: proposed, tried, and the verdict."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from datetime import UTC, datetime

from frx_graph.autopilot.source_trial import SourceTrial
from frx_graph.compiler.code_fingerprint import compute_environment_key
from frx_graph.ledger.decision import Author, Decision, Kind, format_reason
from frx_graph.trials.environment_record import TrialEnvironment


def hash_patch(diff: str) -> str:
    """Return the ledger's name of a patch: the first sixteen hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(diff.encode()).hexdigest()[:16]


def decide_change(
    target: str, diff: str, trial: SourceTrial, *, environment: TrialEnvironment, document: str, by: Author
) -> tuple[Decision, ...]:
    """Return the events in order, for one append. The patch takes the place of a plan, and the target that of a graph:
    no lookup of a graph finds it."""
    patch = hash_patch(diff)
    kind = Kind.REJECTED
    if trial.proves:
        kind = Kind.PROMOTED
    elif trial.is_open:
        kind = Kind.INCONCLUSIVE
    proposed = Decision(
        kind=Kind.PROPOSED,
        signature=hashlib.sha256(f"source of {target}".encode()).hexdigest()[:16],
        environment=compute_environment_key(environment.setup),
        plan=patch,
        reason=format_reason(f"patch {patch} fixes findings in the source of {target}"),
        recorded_at=datetime.now(UTC),
        policy=trial.policy.hash,
        **asdict(by),
    )
    tried = replace(proposed, kind=Kind.TRIED, reason=format_reason(trial.reason), trial=document)
    return (proposed, tried, replace(tried, kind=kind, trial=None))
