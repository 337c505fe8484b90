"""Try layouts of a model's tensors: channels-last weights, and the layouts that frx-graph chooses.

Convolutions are often faster on channels-last tensors, and then everything between them has to keep that layout; on
some shapes and devices they are slower. `frx:apply` runs what `frx trial` has promoted for this model's graphs;
`frx:autopilot` makes such trials while it compiles, which takes minutes and records decisions in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.runs.tune.families.compilation import explain_no_compilation
from frx_graph.runs.tune.families.family import Family, make_configuration
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import Configuration, Tier

NAME = "layout"
CHANNELS_LAST = "FRX_CHANNELS_LAST"
BACKEND_MODE = "FRX_BACKEND_MODE"
_BACKEND = {"FRX_TORCH_COMPILE": "true", "FRX_TORCH_COMPILE_BACKEND": "frx"}


def propose(_facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose channels-last, then the frx backend."""
    yield make_configuration(NAME, "layout:channels_last", Tier.VALIDATED, {CHANNELS_LAST: "true"})
    yield make_configuration(NAME, "frx:apply", Tier.VALIDATED, _BACKEND | {BACKEND_MODE: "apply"})
    yield make_configuration(NAME, "frx:autopilot", Tier.RISKY, _BACKEND | {BACKEND_MODE: "autopilot"})


def refuse(candidate: Configuration, facts: WorkloadFacts) -> str | None:
    """Refuse candidates that compile if there is no compiler, or the program must not be compiled."""
    return explain_no_compilation(facts) if BACKEND_MODE in dict(candidate.variables) else None


FAMILY = Family(NAME, frozenset({"layout_churn", "underutilized_gpu"}), propose, refuse)
