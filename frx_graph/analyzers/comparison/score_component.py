"""Define the components of a score, and average them over kernels.

A finding in CUDA source takes a share of the score that is left, starting from 1. A grave one ("wrong results, or
several times slower") takes half, others ("a good part of the kernel's time") a quarter, or a tenth. The card's
confidence scales that share. A PTX label takes its score times its confidence. These shares order findings and measure
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from frx_graph.analyzers.kernels.kernel_totals import KernelSummary
from frx_graph.analyzers.layers import Layers, NcuLayer
from frx_graph.evidence.kernel_signature import parse_kernel_signature
from frx_graph.rules.cuda_card import Category, Severity

COVERED = 0.9
"""Part of the time that kernels with a metric must cover for the side's value to be known. For example, a hit rate is
`n/a` for a kernel that reads nothing."""


@dataclass(frozen=True, slots=True)
class Component:
    """A score of each side, 0..1, None if unknown, and its evidence."""

    name: str
    a: float | None
    b: float | None
    evidence_a: Evidence
    evidence_b: Evidence


def compare_score(
    name: str, evidence: Evidence, a: Layers, b: Layers, score: Callable[[Layers], float | None]
) -> Component:
    """Score both sides by the same evidence. Scores are limited to 0..1, since Nsight Compute reports hit rates of
    100.39 %."""
    score_a, score_b = (None if found is None else min(1.0, max(0.0, found)) for found in (score(a), score(b)))
    return Component(name, score_a, score_b, evidence, evidence)


def compute_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; None if there is no value, or one is unknown."""
    found = list(values)
    known = [value for value in found if value is not None]
    return compute_weighted_mean([(1.0, value) for value in known]) if found and len(known) == len(found) else None


def compute_weighted_mean(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the weighted mean of pairs of weight and value, exactly the value if all are equal."""
    values = {value for _, value in weighted}
    if len(values) == 1:
        return values.pop()
    return math.fsum(weight * value for weight, value in weighted) / math.fsum(weight for weight, _ in weighted)


def average_measured(layer: NcuLayer | None, value: Callable[[KernelSummary], float | None]) -> float | None:
    """Average `value` over all kernels by time, or by launches if a time is missing."""
    if layer is None:
        return None
    kernels = [kernel.summary for kernel in layer.analysis.kernels]
    weights = [kernel.seconds for kernel in kernels if kernel.seconds is not None]
    if len(weights) < len(kernels) or math.fsum(weights) <= 0:
        weights = [float(kernel.launches) for kernel in kernels]
    weighted = [(weight, value(kernel)) for kernel, weight in zip(kernels, weights, strict=True)]
    known = [(weight, found) for weight, found in weighted if found is not None and weight > 0]
    covered = math.fsum(weight for weight, _ in known)
    return compute_weighted_mean(known) if known and covered >= COVERED * math.fsum(weights) else None


def average_percentage(layer: NcuLayer | None, name: str) -> float | None:
    """Return a percentage over all kernels as a fraction."""
    found = average_measured(layer, lambda kernel: kernel.values.get(name))
    return None if found is None else found / 100.0


SHARES: Mapping[Severity, float] = MappingProxyType({Severity.HIGH: 0.5, Severity.MEDIUM: 0.25, Severity.LOW: 0.1})


def score_source(layers: Layers, categories: Collection[Category]) -> float | None:
    """Score the findings of all kernels alike; None without source or kernels."""
    if layers.source is None:
        return None
    functions = (parse_kernel_signature(kernel.name).function for kernel in layers.source.source.kernels)
    shares: dict[str, list[float]] = {function: [] for function in functions}
    for finding in layers.source.analysis.findings:
        if finding.card.category in categories:
            lost = SHARES[finding.card.severity] * finding.card.confidence
            shares.setdefault(parse_kernel_signature(finding.kernel).function, []).append(1.0 - lost)
    return compute_mean(math.prod(sorted(found)) for found in shares.values())


def score_ptx(layers: Layers, labels: frozenset[str]) -> float | None:
    """Score PTX labels in the same way."""
    if layers.ptx is None:
        return None
    return compute_mean(
        math.prod(sorted(1.0 - label.score * label.confidence for label in kernel.labels if label.label in labels))
        for kernel in layers.ptx.analysis.kernels
    )


Evidence = Literal["ncu", "ptxas", "ptx", "source"]
