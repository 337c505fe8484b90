"""torch.compile: fewer kernels, and fewer passes through memory; a long first step."""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.runs.tune.families.family import Family, configuration
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import Configuration, Tier

NAME = "compilation"
COMPILE, MODE = "FRX_TORCH_COMPILE", "FRX_TORCH_COMPILE_MODE"
DYNAMIC = 3
"""Batches of more layouts than this are taken to change all the time."""
_CAPTURED = "reduce-overhead"
_MARKS = ("0", "false", "unsupported")
"""Values of `FRX_TORCH_COMPILE` in the user's own environment."""


def propose(facts: WorkloadFacts) -> Iterator[Configuration]:
    """As it is, and on a GPU with launches recorded."""
    yield configuration(NAME, "compile:default", Tier.VALIDATED, {COMPILE: "true"})
    if facts.gpus:
        yield configuration(NAME, f"compile:{_CAPTURED}", Tier.VALIDATED, {COMPILE: "true", MODE: _CAPTURED})


def refuse(candidate: Configuration, facts: WorkloadFacts) -> str | None:
    """Without a compiler, against the user's word, or where shapes change."""
    if (reason := not_compiled(facts)) is not None:
        return reason
    if dict(candidate.variables).get(MODE) == _CAPTURED:
        return changing_shapes(facts)
    return None


def not_compiled(facts: WorkloadFacts) -> str | None:
    """Why nothing is compiled here: the user says so, or there is nothing to do it with, as Inductor makes C++ for a
    processor."""
    if facts.environment.get(COMPILE, "").lower() in _MARKS:
        return f"{COMPILE} in the environment marks torch.compile as unsupported for this program"
    if not facts.gpus and not facts.compiler:
        return "there is no C++ compiler (g++, clang++, or CXX) for torch.compile"
    return None


def changing_shapes(facts: WorkloadFacts) -> str | None:
    """What is recorded once can run with the same shapes only."""
    seen = facts.seen.batch_layouts
    return f"shapes appear dynamic: batches had {seen} different layouts" if seen > DYNAMIC else None


FAMILY = Family(NAME, frozenset({"launch_bound", "underutilized_gpu"}), propose, refuse)
