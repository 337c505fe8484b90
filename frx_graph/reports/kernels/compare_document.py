"""Comparison of two programs as JSON: the document `frx_compare_v1`, under the mode "comparison"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from frx_graph.analyzers.comparison.comparison import Comparison
from frx_graph.analyzers.comparison.matching import FindingChange, Layer
from frx_graph.analyzers.comparison.measured_time import MeasuredTime
from frx_graph.analyzers.comparison.ncu_diff import NcuDiff
from frx_graph.analyzers.comparison.static_diff import PtxDiff, SourceDiff
from frx_graph.analyzers.kernels.recommendations import get_label_title
from frx_graph.analyzers.layers import Layers
from frx_graph.reports.kernels.compare_gaps import NextCommand, list_unknowns, suggest_commands
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
from frx_graph.reports.kernels.reconcile_document import build_reconcile_document
from frx_graph.reports.kernels.tradeoff_text import describe_tradeoff
from frx_graph.reports.render.quantities import drop_non_finite
from frx_graph.rules.cuda_card import load_cuda_cards
from frx_graph.support.plain_text import escape_surrogates


def build_compare_document(found: Comparison, again: NextCommand) -> CompareDocument:
    """Return the document of a comparison; `again` is the user's command with possible additions."""
    verdict = found.verdict
    causes_a = build_reconcile_document(found.a, found.causes_a).result
    causes_b = build_reconcile_document(found.b, found.causes_b).result
    return CompareDocument(
        result=CompareResult(
            label_a=escape_surrogates(found.label_a),
            label_b=escape_surrogates(found.label_b),
            data_availability=AvailabilityPart(
                a=_build_layers(found.a), b=_build_layers(found.b), compared=_list_compared(found)
            ),
            static_diff=None
            if found.source is None
            else StaticDiffPart(
                kernels=tuple(map(StaticKernelPart.from_record, found.source.kernels)),
                **_get_common_fields(found.source),
            ),
            ptx_diff=None if found.ptx is None else _build_ptx_diff(found.ptx),
            ncu_diff=None if found.ncu is None else build_ncu_diff(found.ncu),
            scorecard={one.name: DimensionPart.from_record(one) for one in found.scorecard},
            verdict=VerdictPart.from_record(
                verdict,
                dimensions={one.name: one.winner for one in found.scorecard},
                time=None if verdict.time is None else _build_time(verdict.time),
            ),
            resolved=_build_findings(found.resolved),
            regressions=_build_findings(found.regressions),
            root_causes_a=causes_a.diagnoses,
            root_causes_b=causes_b.diagnoses,
            tradeoffs=tuple(TradeoffPart.from_record(one, text=describe_tradeoff(one)) for one in found.tradeoffs),
            missing_evidence=causes_a.missing_evidence,
            still_unknown=tuple(map(escape_surrogates, list_unknowns(found))),
            upgrade_hints=tuple(map(escape_surrogates, suggest_commands(found, again))),
        )
    )


def _build_layers(layers: Layers) -> LayersPart:
    source, ptx, ncu = layers.source, layers.ptx, layers.ncu
    return LayersPart(
        source=None if source is None else escape_surrogates(source.source.source),
        ptx=None if ptx is None else escape_surrogates(ptx.module.source),
        ncu=None if ncu is None else escape_surrogates(ncu.export.source),
    )


def _list_compared(found: Comparison) -> tuple[Layer, ...]:
    layers: tuple[tuple[Layer, object], ...] = (("source", found.source), ("ptx", found.ptx), ("ncu", found.ncu))
    return tuple(layer for layer, diff in layers if diff is not None)


def _build_ptx_diff(diff: PtxDiff) -> PtxDiffPart:
    return PtxDiffPart(
        target_a=diff.target_a,
        target_b=diff.target_b,
        kernels=tuple(map(PtxKernelPart.from_record, diff.kernels)),
        **_get_common_fields(diff),
    )


def build_ncu_diff(diff: NcuDiff) -> NcuDiffPart:
    """Return the part of a document on measurements."""
    return NcuDiffPart(kernels=tuple(map(NcuKernelPart.from_record, diff.kernels)), **_get_common_fields(diff))


def _get_common_fields(diff: SourceDiff | PtxDiff | NcuDiff) -> dict[str, Any]:
    return {
        "only_a": _encode_names(diff.only_a),
        "only_b": _encode_names(diff.only_b),
        "findings_resolved": _build_findings(change for change in diff.findings if change.resolved),
        "findings_introduced": _build_findings(change for change in diff.findings if change.introduced),
    }


def _build_findings(changes: Iterable[FindingChange]) -> tuple[FindingPart, ...]:
    cards = load_cuda_cards()
    return tuple(
        FindingPart.from_record(
            one, title=cards[one.code].title if one.layer == "source" else get_label_title(one.code)
        )
        for one in changes
    )


def _build_time(time: MeasuredTime) -> TimePart:
    readings = (ReadingPart.from_record(one, speedup_x=_divide_times(one.a, one.b)) for one in time.readings)
    return TimePart.from_record(time, readings=tuple(readings))


def _divide_times(a: float | None, b: float | None) -> float | None:
    return drop_non_finite(a / b) if a is not None and b else None


def _encode_names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(escape_surrogates, names))
