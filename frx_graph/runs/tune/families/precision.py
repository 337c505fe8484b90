"""Try automatic mixed precision, which halves the bytes and uses a device's matrix units."""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.runs.tune.families.family import Family, make_configuration
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import Configuration, Tier

NAME = "precision"
VARIABLE = "FRX_AMP_DTYPE"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def propose(_facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose bfloat16 first: it needs no scaling of the loss."""
    for name, dtype in _DTYPES.items():
        yield make_configuration(NAME, f"amp:{name}", Tier.VALIDATED, {VARIABLE: dtype})


def refuse(candidate: Configuration, facts: WorkloadFacts) -> str | None:
    """Refuse without hardware for it, and without a loss to judge its quality by."""
    half = dict(candidate.variables)[VARIABLE]
    if half == "float16" and not facts.gpus:
        return "CUDA is unavailable, and float16 is for GPUs"
    if half == "bfloat16" and not facts.bf16:
        where = (
            "this GPU has no bfloat16: that takes compute capability 8.0" if facts.gpus else "this processor has none"
        )
        return f"bfloat16 is unsupported: {where}"
    if facts.quality_checks and not facts.seen.losses:
        return "quality checks are required, and the program reports no loss (--no-quality-checks tries it anyway)"
    return None


FAMILY = Family(NAME, frozenset({"memory_pressure", "underutilized_gpu"}), propose, refuse)
