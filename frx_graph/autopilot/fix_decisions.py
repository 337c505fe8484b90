"""Turn the trial of a change of the source into ledger events: proposed and tried.

A patch is never promoted there: it takes effect in the source, not by a plan that a process looks up.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

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
    """Return the events in order, for one append. The patch takes the place of a plan, the target that of a graph."""
    patch = hash_patch(diff)
    ended = "proved" if trial.proves else "open" if trial.is_open else "rejected"
    # Two projects may spell their targets alike.
    place = f"{Path.cwd()} {target}"
    proposed = Decision(
        kind=Kind.PROPOSED,
        signature=hashlib.sha256(f"source of {place}".encode()).hexdigest()[:16],
        environment=compute_environment_key(environment.setup),
        plan=patch,
        reason=format_reason(f"patch {patch} fixes findings in the source of {target}"),
        recorded_at=datetime.now(UTC),
        policy=trial.policy.hash,
        **asdict(by),
    )
    reason = format_reason(f"{ended}: {trial.reason}")
    return (proposed, replace(proposed, kind=Kind.TRIED, reason=reason, trial=document))
