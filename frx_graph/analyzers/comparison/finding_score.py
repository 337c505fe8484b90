"""Findings as a score: 1 without any, and less with each, the graver and the surer the more.

A finding of the source takes its share of what is left: half if it is grave ("wrong results, or several times slower"),
a quarter ("a good part of the kernel's time"), or a tenth, times its card's confidence; a label of PTX its own score
times its confidence. These shares are ours: they order findings, and measure nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from frx_graph.analyzers.comparison.score_component import mean
from frx_graph.analyzers.layers import Layers
from frx_graph.evidence.kernel_signature import kernel_signature
from frx_graph.rules.cuda_card import Category, Severity

SHARES: Mapping[Severity, float] = MappingProxyType({Severity.HIGH: 0.5, Severity.MEDIUM: 0.25, Severity.LOW: 0.1})


def source_score(layers: Layers, categories: frozenset[Category]) -> float | None:
    """Of all kernels alike; None without source, or of one without kernels."""
    if layers.source is None:
        return None
    shares: dict[str, list[float]] = {
        kernel_signature(kernel.name).function: [] for kernel in layers.source.source.kernels
    }
    for finding in layers.source.analysis.findings:
        if finding.card.category in categories:
            lost = SHARES[finding.card.severity] * finding.card.confidence
            shares.setdefault(kernel_signature(finding.kernel).function, []).append(1.0 - lost)
    return mean(math.prod(sorted(found)) for found in shares.values())


def ptx_score(layers: Layers, labels: frozenset[str]) -> float | None:
    """The same of PTX."""
    if layers.ptx is None:
        return None
    return mean(
        math.prod(sorted(1.0 - label.score * label.confidence for label in kernel.labels if label.label in labels))
        for kernel in layers.ptx.analysis.kernels
    )
