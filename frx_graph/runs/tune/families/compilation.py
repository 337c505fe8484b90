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


def propose(facts: WorkloadFacts) -> Iterator[Configuration]:
    """As it is, and on a GPU with launches recorded."""
    yield configuration(NAME, "compile:default", Tier.VALIDATED, {COMPILE: "true"})
    if facts.gpus:
        yield configuration(NAME, f"compile:{_CAPTURED}", Tier.VALIDATED, {COMPILE: "true", MODE: _CAPTURED})


def refuse(candidate: Configuration, facts: WorkloadFacts) -> str | None:
    """Without a compiler, against the user's word, or where shapes change."""
    if facts.environment.get(COMPILE, "").lower() in ("0", "false", "unsupported"):
        return f"{COMPILE} in the environment marks torch.compile as unsupported for this program"
    if (reason := no_compiler(facts)) is not None:
        return reason
    if dict(candidate.variables).get(MODE) == _CAPTURED:
        return changing_shapes(facts)
    return None


def no_compiler(facts: WorkloadFacts) -> str | None:
    """Inductor makes C++ for a processor."""
    return None if facts.gpus or facts.compiler else "there is no C++ compiler (g++, clang++, or CXX) for torch.compile"


def changing_shapes(facts: WorkloadFacts) -> str | None:
    """What is recorded once can run with the same shapes only."""
    seen = facts.seen.batch_layouts
    return f"shapes appear dynamic: batches had {seen} different layouts" if seen > DYNAMIC else None


FAMILY = Family(NAME, frozenset({"launch_bound", "underutilized_gpu"}), propose, refuse)
