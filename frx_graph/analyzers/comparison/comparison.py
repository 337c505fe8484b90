"""Compare two programs: changes in each layer, four scores, a verdict and its trade-offs."""

from __future__ import annotations

from dataclasses import dataclass

from frx_graph.analyzers.comparison.matching import FindingChange, match_kernels
from frx_graph.analyzers.comparison.measured_time import compare_times
from frx_graph.analyzers.comparison.ncu_diff import NcuDiff, compare_ncu, match_measured
from frx_graph.analyzers.comparison.scorecard import Dimension, Verdict, decide_verdict, score_dimensions
from frx_graph.analyzers.comparison.static_cost import StaticCosts, compare_costs
from frx_graph.analyzers.comparison.static_diff import PtxDiff, SourceDiff, compare_ptx_files, compare_sources
from frx_graph.analyzers.comparison.tradeoffs import Tradeoff, find_tradeoffs
from frx_graph.analyzers.layers import Layers
from frx_graph.analyzers.reconcile.reconciliation import Reconciliation, reconcile


@dataclass(frozen=True, slots=True)
class Comparison:
    """A compared pair. `causes_a` and `causes_b` are the reconciled layers of each; a diff is None unless both have
    that layer."""

    label_a: str
    label_b: str
    a: Layers
    b: Layers
    source: SourceDiff | None
    ptx: PtxDiff | None
    ncu: NcuDiff | None
    scorecard: tuple[Dimension, ...]
    verdict: Verdict
    tradeoffs: tuple[Tradeoff, ...]
    causes_a: Reconciliation
    causes_b: Reconciliation

    @property
    def findings(self) -> tuple[FindingChange, ...]:
        """Return the changed findings of all layers."""
        return tuple(
            change for diff in (self.source, self.ptx, self.ncu) if diff is not None for change in diff.findings
        )

    @property
    def resolved(self) -> tuple[FindingChange, ...]:
        """Return findings that `a` has and `b` lacks, or has less often."""
        return tuple(change for change in self.findings if change.resolved)

    @property
    def regressions(self) -> tuple[FindingChange, ...]:
        """Return findings that `b` has and `a` lacks, or has less often."""
        return tuple(change for change in self.findings if change.introduced)


def compare_layers(a: Layers, b: Layers, label_a: str, label_b: str, *, whole_runs: bool = False) -> Comparison:
    """Compare the layers that both sides have. `whole_runs` means that every kernel of a run of each program was
    measured. Swapping the sides swaps the results."""
    source = None if a.source is None or b.source is None else compare_sources(a.source, b.source)
    ptx = None if a.ptx is None or b.ptx is None else compare_ptx_files(a.ptx, b.ptx)
    ncu, time = None, None
    if a.ncu is not None and b.ncu is not None:
        matching = match_measured(a.ncu, b.ncu)
        ncu, time = compare_ncu(a.ncu, b.ncu, matching), compare_times(matching, whole_runs=whole_runs)
    dimensions = score_dimensions(a, b, whole_runs=whole_runs)
    said = decide_verdict(dimensions, time, _predict_costs(a, b), same_code=_have_same_code(a, b))
    return Comparison(
        label_a=label_a,
        label_b=label_b,
        a=a,
        b=b,
        source=source,
        ptx=ptx,
        ncu=ncu,
        scorecard=dimensions,
        verdict=said,
        tradeoffs=find_tradeoffs(said, dimensions, source, ptx, ncu),
        causes_a=reconcile(a),
        causes_b=reconcile(b),
    )


def _have_same_code(a: Layers, b: Layers) -> bool:
    """Return True if the kernels of both sides are the same, line for line."""
    sources = [None if side.source is None else side.source.source.kernels for side in (a, b)]
    modules = [None if side.ptx is None else side.ptx.module.functions for side in (a, b)]
    return sources[0] == sources[1] and modules[0] == modules[1]


def _predict_costs(a: Layers, b: Layers) -> StaticCosts | None:
    """Return the predicted costs of both sources; None unless every kernel of one side has a counterpart."""
    if a.source is None or b.source is None:
        return None
    matching = match_kernels(a.source.source.kernels, b.source.source.kernels, lambda kernel: kernel.name)
    if not matching.complete:
        return None
    return compare_costs([pair.a for pair in matching.pairs], [pair.b for pair in matching.pairs])
