"""Comparison of two programs as JSON: the document `frx_compare_v1`, under the mode "comparison"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeVar

from pydantic import AliasChoices, Field

from frx_graph.analyzers.comparison.comparison import Comparison
from frx_graph.analyzers.comparison.matching import FindingChange, Layer, MatchedBy, Winner
from frx_graph.analyzers.comparison.measured_time import MeasuredTime
from frx_graph.analyzers.comparison.ncu_diff import NcuDiff
from frx_graph.analyzers.comparison.score_component import Evidence
from frx_graph.analyzers.comparison.scorecard import Basis, DimensionName
from frx_graph.analyzers.comparison.static_diff import PtxDiff, SourceDiff
from frx_graph.analyzers.comparison.tradeoffs import Kind
from frx_graph.analyzers.kernels.recommendations import get_label_title
from frx_graph.analyzers.reconcile.signal import Layer as EvidenceLayer
from frx_graph.evidence.cuda.source import Space
from frx_graph.reports.kernels.compare_text import NextCommand, describe_tradeoff, suggest_commands, yield_unknowns
from frx_graph.reports.kernels.reconcile_document import (
    MissingEvidencePart,
    ReconciledDiagnosisPart,
    ReconcileResult,
    build_reconcile_document,
)
from frx_graph.reports.render.document import Part, Text, read_from
from frx_graph.reports.render.quantities import drop_non_finite
from frx_graph.rules.cuda_card import load_cuda_cards

_Names = tuple[Text, ...]
_LAYERS: tuple[Layer, ...] = ("source", "ptx", "ncu")


class ChangePart(Part):
    """One figure of both sides; null: unknown for that side."""

    metric: Text
    title: Text
    unit: str = Field(description="s, byte, byte/s, hz, %, or empty")
    a: float | None
    b: float | None
    delta: float | None = Field(description="b - a")


class FindingPart(Part):
    """A finding that is more frequent on one side."""

    layer: Layer
    code: str
    title: str
    kernel_a: Text | None = read_from(
        "kernel_a.name", "null, like kernel_b: all kernels without a counterpart together"
    )
    kernel_b: Text | None = read_from("kernel_b.name")
    count_a: int = read_from("a")
    count_b: int = read_from("b")


class _DiffPart(Part):
    findings_resolved: tuple[FindingPart, ...]
    findings_introduced: tuple[FindingPart, ...]


class _KernelPart(Part):
    kernel_a: Text
    kernel_b: Text
    matched_by: MatchedBy
    changes: tuple[ChangePart, ...] = Field(description="equal entries included")


_Diff = TypeVar("_Diff", bound=_DiffPart)


class StridePart(Part):
    """Distance between neighbouring threads of a warp in an array, in elements, for each kind of use."""

    array: Text
    space: Space
    a: _Names = Field(description="0: all the same element; ?: unknown")
    b: _Names


class StaticKernelPart(_KernelPart):
    """Two versions of a kernel's source."""

    strides: tuple[StridePart, ...] = Field(description="strides of arrays, if they differ")


class StaticDiffPart(_DiffPart):
    """Two CUDA sources."""

    kernels: tuple[StaticKernelPart, ...]
    only_a: _Names
    only_b: _Names


class PtxKernelPart(_KernelPart):
    """Two versions of a kernel's PTX."""

    assembled: bool = Field(description="false: registers are virtual, with low confidence, and spills are unknown")
    instruction_mix: tuple[ChangePart, ...] = Field(validation_alias=AliasChoices("instruction_mix", "mix"))


class PtxDiffPart(_DiffPart):
    """Two PTX files."""

    target_a: str
    target_b: str
    kernels: tuple[PtxKernelPart, ...]
    only_a: _Names
    only_b: _Names


class NcuKernelPart(_KernelPart):
    """Measurements of two versions of a kernel, over all launches of each."""

    device_a: Text
    device_b: Text
    launches_a: int
    launches_b: int
    seconds_a: float | None = Field(description="of all launches; null: not measured for each")
    seconds_b: float | None
    speedup_x: float | None = Field(description="seconds_a over seconds_b")
    faster: Winner
    bound_a: Literal["memory", "compute", "balanced", "latency", "unknown"]
    bound_b: Literal["memory", "compute", "balanced", "latency", "unknown"]
    warp_stalls: tuple[ChangePart, ...] = Field(
        validation_alias=AliasChoices("warp_stalls", "stalls"),
        description="percent of the time that warps are resident",
    )


class NcuDiffPart(_DiffPart):
    """Two measurements. A limiter counts as a finding only for the version that is not faster."""

    kernels: tuple[NcuKernelPart, ...]
    only_a: _Names
    only_b: _Names


class LayersPart(Part):
    """The files of a side; null: no such file."""

    source: str | None
    ptx: str | None
    ncu: str | None


class AvailabilityPart(Part):
    """The layers of each side, and the layers that could be compared."""

    a: LayersPart
    b: LayersPart
    compared: tuple[Layer, ...]


class ComponentPart(Part):
    """One component of a score, 0..1."""

    name: str
    a: float | None
    b: float | None
    evidence_a: Evidence
    evidence_b: Evidence


class DimensionPart(Part):
    """An efficiency of both sides, 0..1."""

    score_a: float | None
    score_b: float | None
    weight: float
    available: bool = Field(description="false: the sides share no evidence, and the score does not count")
    winner: Winner
    components: tuple[ComponentPart, ...]


class ReadingPart(Part):
    """Times of both."""

    of: str
    seconds_a: float = read_from("a")
    seconds_b: float = read_from("b")
    speedup_x: float | None = Field(description="null: not finite")
    winner: Winner


class TimePart(Part):
    """Verdict by measured time. If readings disagree, the winner is unknown."""

    winner: Winner
    readings: tuple[ReadingPart, ...]
    gpus_a: _Names
    gpus_b: _Names


class CostPart(Part):
    """Cycles of a warp for each result, at least and at most: they order versions, and forecast no time."""

    least: float
    most: float


class PredictedPart(Part):
    """The predicted costs of both sources."""

    a: CostPart
    b: CostPart


class VerdictPart(Part):
    """The winner."""

    overall_winner: Winner = read_from("winner")
    basis: Basis = Field(description="basis of the verdict: time takes precedence over scores")
    reason: str | None = Field(description="why the winner is unknown; null: it is known")
    score_a: float | None = Field(description="weighted over the available dimensions; null: none")
    score_b: float | None
    dimensions: dict[DimensionName, Winner]
    time: TimePart | None = Field(description="null: times were not measured on both sides")
    predicted: PredictedPart | None = Field(
        default=None, description="cost of memory accesses and barriers by the sources; null: not known for both"
    )


class TradeoffPart(Part):
    """An objection to the verdict, or a condition for trusting it."""

    kind: Kind
    text: Text
    winner: Winner = Field(description="the side that is better in the first figure; unknown: neither")
    changes: tuple[ChangePart, ...]
    kernel_a: Text | None
    kernel_b: Text | None
    only_a: _Names
    only_b: _Names


class CompareResult(Part):
    """Two programs."""

    schema_: Literal["frx_compare_v1"] = Field(default="frx_compare_v1", alias="schema")
    label_a: Text
    label_b: Text
    data_availability: AvailabilityPart
    static_diff: StaticDiffPart | None = Field(description="null: not available on both sides")
    ptx_diff: PtxDiffPart | None
    ncu_diff: NcuDiffPart | None
    scorecard: dict[DimensionName, DimensionPart]
    verdict: VerdictPart
    resolved: tuple[FindingPart, ...] = Field(description="of all layers")
    regressions: tuple[FindingPart, ...]
    root_causes_a: tuple[ReconciledDiagnosisPart, ...] = Field(description="joint diagnoses from the layers of A")
    root_causes_b: tuple[ReconciledDiagnosisPart, ...]
    tradeoffs: tuple[TradeoffPart, ...]
    missing_evidence: tuple[MissingEvidencePart, ...] = Field(description="evidence that would confirm A's root causes")
    still_unknown: tuple[Text, ...]
    upgrade_hints: tuple[Text, ...] = Field(description="commands that would answer them")


class CompareDocument(Part):
    """Wrapper shared by all analyses."""

    mode: Literal["comparison"] = "comparison"
    result: CompareResult


def build_compare_document(found: Comparison, again: NextCommand) -> CompareDocument:
    """Return the document of a comparison; `again` is the user's command with possible additions."""
    causes_a = build_reconcile_document(found.a, found.causes_a).result
    causes_b = build_reconcile_document(found.b, found.causes_b).result
    return CompareDocument(
        result=CompareResult.from_record(
            found,
            data_availability=AvailabilityPart(
                a=_list_files(causes_a),
                b=_list_files(causes_b),
                compared=tuple(layer for layer in _LAYERS if getattr(found, layer) is not None),
            ),
            static_diff=None if found.source is None else build_diff(StaticDiffPart, found.source),
            ptx_diff=None if found.ptx is None else build_diff(PtxDiffPart, found.ptx),
            ncu_diff=None if found.ncu is None else build_diff(NcuDiffPart, found.ncu),
            scorecard={one.name: one for one in found.scorecard},
            verdict=VerdictPart.from_record(
                found.verdict,
                dimensions={one.name: one.winner for one in found.scorecard},
                time=None if found.verdict.time is None else _build_time(found.verdict.time),
            ),
            resolved=_build_findings(found.resolved),
            regressions=_build_findings(found.regressions),
            root_causes_a=causes_a.diagnoses,
            root_causes_b=causes_b.diagnoses,
            tradeoffs=tuple(TradeoffPart.from_record(one, text=describe_tradeoff(one)) for one in found.tradeoffs),
            missing_evidence=causes_a.missing_evidence,
            still_unknown=tuple(yield_unknowns(found)),
            upgrade_hints=suggest_commands(found, again),
        )
    )


def _list_files(causes: ReconcileResult) -> LayersPart:
    return LayersPart(**{layer: causes.files.get(EvidenceLayer(layer)) for layer in _LAYERS})


def build_diff(part: type[_Diff], diff: SourceDiff | PtxDiff | NcuDiff) -> _Diff:
    """Return the part of a document on one layer."""
    return part.from_record(
        diff,
        findings_resolved=_build_findings(change for change in diff.findings if change.resolved),
        findings_introduced=_build_findings(change for change in diff.findings if change.introduced),
    )


def _build_findings(changes: Iterable[FindingChange]) -> tuple[FindingPart, ...]:
    cards = load_cuda_cards()
    return tuple(
        FindingPart.from_record(
            one, title=cards[one.code].title if one.layer == "source" else get_label_title(one.code)
        )
        for one in changes
    )


def _build_time(time: MeasuredTime) -> TimePart:
    readings = (
        ReadingPart.from_record(one, speedup_x=drop_non_finite(one.a / one.b) if one.b else None)
        for one in time.readings
    )
    return TimePart.from_record(time, readings=tuple(readings))
