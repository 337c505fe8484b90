"""Try torch.compile, which runs fewer kernels and reads memory less often, but has a long first step."""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.runs.tune.families.family import Family, make_configuration
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
    """Propose the default mode, and on a GPU recorded launches."""
    yield make_configuration(NAME, "compile:default", Tier.VALIDATED, {COMPILE: "true"})
    if facts.gpus:
        yield make_configuration(NAME, f"compile:{_CAPTURED}", Tier.VALIDATED, {COMPILE: "true", MODE: _CAPTURED})


def refuse(candidate: Configuration, facts: WorkloadFacts) -> str | None:
    """Refuse without a compiler, against the user's setting, and recorded launches if shapes change."""
    if (reason := explain_no_compilation(facts)) is not None:
        return reason
    if dict(candidate.variables).get(MODE) == _CAPTURED:
        return explain_changing_shapes(facts)
    return None


def explain_no_compilation(facts: WorkloadFacts) -> str | None:
    """Return the reason against compiling: the user's setting, or no C++ compiler, which Inductor needs on a CPU."""
    if facts.environment.get(COMPILE, "").lower() in _MARKS:
        return f"{COMPILE} in the environment marks torch.compile as unsupported for this program"
    if not facts.gpus and not facts.compiler:
        return "there is no C++ compiler (g++, clang++, or CXX) for torch.compile"
    return None


def explain_changing_shapes(facts: WorkloadFacts) -> str | None:
    """Return the reason against recording launches: recorded launches need the same shapes in every step."""
    seen = facts.seen.batch_layouts
    return f"shapes appear dynamic: batches had {seen} different layouts" if seen > DYNAMIC else None


FAMILY = Family(NAME, frozenset({"launch_bound", "underutilized_gpu"}), propose, refuse)
