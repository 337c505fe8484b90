"""What measured times speak for in a program, asked for in a process of its own, and in what portions it is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import TypeAdapter

from frx_graph.arms import start_arm
from frx_graph.errors import TrialError
from frx_graph.records import Candidate
from frx_graph.trials.arm_messages import Load, Loaded, MadeGraph, Question, Warm, Warmed
from frx_graph.trials.arm_process import ArmError, ArmProcess

_TOGETHER = {"backward_layout": "propagate_layout"}
"""Rewrites that are tried with another: a layout is one decision, forward and backward."""
_PROPOSING_SECONDS = 1800.0

Answered = TypeVar("Answered")


def proposed(base: Load, rewrites: Sequence[str]) -> tuple[MadeGraph, ...]:
    """What measured times speak for among `rewrites`, graph by graph. Raises `TrialError` where the program does not
    run."""
    try:
        with start_arm() as arm:
            _ask(arm, replace(base, proposes=tuple(rewrites)), Loaded)
            return _ask(arm, Warm(1), Warmed).graphs
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


def _ask(arm: ArmProcess, question: Question, answered: type[Answered]) -> Answered:
    message = TypeAdapter(type(question)).dump_python(question, mode="json")
    return TypeAdapter(answered).validate_python(arm.ask(message, seconds=_PROPOSING_SECONDS))
