"""What measured times speak for in a program, asked for in a process of its own, and in what portions it is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frx_graph.arms import start_arm
from frx_graph.errors import TrialError
from frx_graph.records import Candidate
from frx_graph.trials.arm_messages import Load, Loaded, MadeGraph, Warm, Warmed, ask
from frx_graph.trials.arm_process import ArmError

_TOGETHER = {"backward_layout": "propagate_layout"}
"""Rewrites that are tried with another: a layout is one decision, forward and backward."""
_PROPOSING_SECONDS = 1800.0


def proposed(base: Load, rewrites: Sequence[str]) -> tuple[MadeGraph, ...]:
    """What measured times speak for among `rewrites`, graph by graph. Raises `TrialError` where the program does not
    run."""
    try:
        with start_arm() as arm:
            ask(arm, replace(base, proposes=tuple(rewrites)), Loaded, _PROPOSING_SECONDS)
            return ask(arm, Warm(1), Warmed, _PROPOSING_SECONDS).graphs
    except ArmError as error:
        raise TrialError(f"the program does not run: {error}", "run it by itself first") from error


def portions(candidates: Sequence[Candidate]) -> dict[str, float]:
    """The names by which `candidates` are tried one by one, with the seconds that each is predicted to save, most
    first; 0 where nothing was predicted."""
    found: dict[str, float] = {}
    for candidate in candidates:
        name = _TOGETHER.get(candidate.rewrite, candidate.rewrite)
        found[name] = found.get(name, 0.0) + (candidate.predicted_seconds or 0.0)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def rewrites_of(portion: str) -> tuple[str, ...]:
    """The rewrites that are tried by this name."""
    return (portion, *(rewrite for rewrite, other in _TOGETHER.items() if other == portion))
