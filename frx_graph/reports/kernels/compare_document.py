"""Two programs beside each other as JSON: the document `frx_compare_v1`, under the mode "comparison"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from frx_graph.analyzers.comparison.comparison import Comparison
from frx_graph.analyzers.comparison.matching import FindingChange, Layer
from frx_graph.analyzers.comparison.measured_time import MeasuredTime
from frx_graph.analyzers.comparison.ncu_diff import NcuDiff
from frx_graph.analyzers.comparison.static_diff import PtxDiff, SourceDiff
from frx_graph.analyzers.kernels.recommendations import label_title
from frx_graph.analyzers.layers import Layers
from frx_graph.reports.kernels.compare_gaps import NextCommand, still_unknown, upgrade_hints
from frx_graph.reports.kernels.compare_parts import (
    AvailabilityPart,
    CompareDocument,
    CompareResult,
    DimensionPart,
    FindingPart,
    LayersPart,
    NcuDiffPart,
    NcuKernelPart,
    PtxDiffPart,
    PtxKernelPart,
    ReadingPart,
    StaticDiffPart,
    StaticKernelPart,
    TimePart,
    TradeoffPart,
    VerdictPart,
)
from frx_graph.reports.kernels.reconcile_document import reconcile_document
from frx_graph.reports.kernels.tradeoff_text import tradeoff_text
from frx_graph.reports.render.quantities import finite
from frx_graph.rules.cuda_card import cuda_cards
from frx_graph.support.plain_text import encodable


def compare_document(found: Comparison, again: NextCommand) -> CompareDocument:
    """The document of a comparison; `again` is the command that was typed, and what may be added to it."""
    verdict = found.verdict
    causes_a = reconcile_document(found.a, found.causes_a).result
    causes_b = reconcile_document(found.b, found.causes_b).result
    return CompareDocument(
        result=CompareResult(
            label_a=encodable(found.label_a),
            label_b=encodable(found.label_b),
            data_availability=AvailabilityPart(a=_layers(found.a), b=_layers(found.b), compared=_compared(found)),
            static_diff=None
            if found.source is None
            else StaticDiffPart(
                kernels=tuple(map(StaticKernelPart.from_record, found.source.kernels)), **_common(found.source)
            ),
            ptx_diff=None if found.ptx is None else _ptx(found.ptx),
            ncu_diff=None if found.ncu is None else ncu_diff_part(found.ncu),
            scorecard={one.name: DimensionPart.from_record(one) for one in found.scorecard},
            verdict=VerdictPart.from_record(
                verdict,
                dimensions={one.name: one.winner for one in found.scorecard},
                time=None if verdict.time is None else _time(verdict.time),
            ),
            resolved=_findings(found.resolved),
            regressions=_findings(found.regressions),
            root_causes_a=causes_a.diagnoses,
            root_causes_b=causes_b.diagnoses,
            tradeoffs=tuple(TradeoffPart.from_record(one, text=tradeoff_text(one)) for one in found.tradeoffs),
            missing_evidence=causes_a.missing_evidence,
            still_unknown=tuple(map(encodable, still_unknown(found))),
            upgrade_hints=tuple(map(encodable, upgrade_hints(found, again))),
        )
    )


def _layers(layers: Layers) -> LayersPart:
    source, ptx, ncu = layers.source, layers.ptx, layers.ncu
    return LayersPart(
        source=None if source is None else encodable(source.source.source),
        ptx=None if ptx is None else encodable(ptx.module.source),
        ncu=None if ncu is None else encodable(ncu.export.source),
    )


def _compared(found: Comparison) -> tuple[Layer, ...]:
    layers: tuple[tuple[Layer, object], ...] = (("source", found.source), ("ptx", found.ptx), ("ncu", found.ncu))
    return tuple(layer for layer, diff in layers if diff is not None)


def _ptx(diff: PtxDiff) -> PtxDiffPart:
    return PtxDiffPart(
        target_a=diff.target_a,
        target_b=diff.target_b,
        kernels=tuple(map(PtxKernelPart.from_record, diff.kernels)),
        **_common(diff),
    )


def ncu_diff_part(diff: NcuDiff) -> NcuDiffPart:
    """Return the part of a document on measurements."""
    return NcuDiffPart(kernels=tuple(map(NcuKernelPart.from_record, diff.kernels)), **_common(diff))


def _common(diff: SourceDiff | PtxDiff | NcuDiff) -> dict[str, Any]:
    return {
        "only_a": _names(diff.only_a),
        "only_b": _names(diff.only_b),
        "findings_resolved": _findings(change for change in diff.findings if change.resolved),
        "findings_introduced": _findings(change for change in diff.findings if change.introduced),
    }


def _findings(changes: Iterable[FindingChange]) -> tuple[FindingPart, ...]:
    cards = cuda_cards()
    return tuple(
        FindingPart.from_record(one, title=cards[one.code].title if one.layer == "source" else label_title(one.code))
        for one in changes
    )


def _time(time: MeasuredTime) -> TimePart:
    readings = (ReadingPart.from_record(one, speedup_x=_ratio(one.a, one.b)) for one in time.readings)
    return TimePart.from_record(time, readings=tuple(readings))


def _ratio(a: float | None, b: float | None) -> float | None:
    return finite(a / b) if a is not None and b else None


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(encodable, names))
