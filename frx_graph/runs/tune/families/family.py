"""Define a family of candidates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import Configuration, Tier

_NO_NAME = re.compile(r"[^A-Za-z0-9._]+")

Propose = Callable[[WorkloadFacts], Iterator[Configuration]]
Refuse = Callable[[Configuration, WorkloadFacts], str | None]


def _refuse_nothing(_configuration: Configuration, _facts: WorkloadFacts) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Family:
    """Candidates that are tried in one stage, since they exclude each other.

    `bottlenecks` are the labels of diagnoses that the family may remedy. `refuse` says why a candidate is not run here.
    """

    name: str
    bottlenecks: frozenset[str]
    propose: Propose
    refuse: Refuse = _refuse_nothing


def make_configuration(family: str, label: str, tier: Tier, variables: Mapping[str, str]) -> Configuration:
    """Return one candidate; its folder is named after its label."""
    name = _NO_NAME.sub("-", label.replace("=", "")).strip("-.")
    return Configuration(name, label, family, tier, tuple(variables.items()))
