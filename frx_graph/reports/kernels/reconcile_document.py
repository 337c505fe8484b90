"""What several layers of evidence say together as JSON: the document `frx_reconcile_v1`, under the mode
"reconciliation"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from frx_graph.analyzers.layers import Layers
from frx_graph.analyzers.reconcile.confidence import ConfidenceLabel
from frx_graph.analyzers.reconcile.matched_kernels import MatchedKernel
from frx_graph.analyzers.reconcile.missing_evidence import MissingEvidence
from frx_graph.analyzers.reconcile.reconciliation import Diagnosis, Reconciliation, Unreconciled, Why
from frx_graph.analyzers.reconcile.signal import GradeLabel, Layer, Signal
from frx_graph.reports.render.document import Part
from frx_graph.support.plain_text import encodable


class ReconciledKernelPart(Part):
    """A kernel, with the names that each layer has for it."""

    name: str
    names: dict[Layer, tuple[str, ...]]
    overloaded: bool = Field(description="several kernels of the source have this name: their findings match none")
    runtime_share_pct: float | None = Field(description="of all kernels that were measured, or of the run")


class SignalPart(Part):
    """What one layer says for a diagnosis, or against it."""

    layer: Layer
    label: str = Field(description="its rule, label or counter")
    grade: GradeLabel
    about: str | None = Field(description="the side of the diagnosis, such as loads; null: all of it")
    evidence: str
    line: int | None = Field(description="of the source")


class ReconciledDiagnosisPart(Part):
    """What holds one kernel back."""

    diagnosis: str
    title: str
    kernel: str
    confidence: ConfidenceLabel
    layers: tuple[Layer, ...] = Field(description="those that agree")
    runtime_share_pct: float | None
    agreeing: tuple[SignalPart, ...]
    contradicting: tuple[SignalPart, ...]


class UnreconciledPart(Part):
    """A finding of one layer that is in no diagnosis."""

    why: Why
    layer: Layer
    label: str
    kernel: str | None = Field(description="null: it is of the whole run")
    evidence: str
    reason: str
    diagnosis: str | None = Field(description="what it would have been; null: only its layer can tell it")
    line: int | None


class MissingEvidencePart(Part):
    """What would make a diagnosis surer."""

    diagnosis: str
    kernel: str
    layer: Layer
    confidence: ConfidenceLabel | None = Field(description="now; null: it does not hold yet")
    confidence_if_confirmed: ConfidenceLabel
    what: str
    metrics: tuple[str, ...] = Field(description="of Nsight Compute")
    command: str | None = Field(description="for a shell; of the layer profiler it is Python")
    fallback: str | None = Field(description="collects more than is needed")


class ReconcileResult(Part):
    """What was found."""

    schema_: Literal["frx_reconcile_v1"] = Field(default="frx_reconcile_v1", alias="schema")
    layers_available: tuple[Layer, ...]
    files: dict[Layer, str]
    kernels: tuple[ReconciledKernelPart, ...]
    primary_diagnosis: str | None
    diagnoses: tuple[ReconciledDiagnosisPart, ...]
    unreconciled: tuple[UnreconciledPart, ...]
    missing_evidence: tuple[MissingEvidencePart, ...]


class ReconcileDocument(Part):
    """The wrapper that all analyses share."""

    mode: Literal["reconciliation"] = "reconciliation"
    result: ReconcileResult


def reconcile_document(layers: Layers, found: Reconciliation) -> ReconcileDocument:
    """The document of these layers, and of what they say together."""
    diagnoses = tuple(map(_diagnosis, found.diagnoses))
    return ReconcileDocument(
        result=ReconcileResult(
            layers_available=found.layers_available,
            files=_files(layers),
            kernels=tuple(map(_kernel, found.kernels)),
            primary_diagnosis=diagnoses[0].diagnosis if diagnoses else None,
            diagnoses=diagnoses,
            unreconciled=tuple(map(_unreconciled, found.unreconciled)),
            missing_evidence=tuple(map(_missing, found.missing)),
        )
    )


def _files(layers: Layers) -> dict[Layer, str]:
    found: dict[Layer, str] = {}
    if layers.source is not None:
        found[Layer.SOURCE] = encodable(layers.source.source.source)
    if layers.ptx is not None:
        found[Layer.PTX] = encodable(layers.ptx.module.source)
    if layers.ncu is not None:
        found[Layer.NCU] = encodable(layers.ncu.export.source)
    if layers.trace is not None:
        found[Layer.PROFILER] = encodable(str(layers.trace.trace.tree.trace.path))
    return found


def _kernel(kernel: MatchedKernel) -> ReconciledKernelPart:
    names: Mapping[Layer, tuple[str, ...]] = {
        Layer.SOURCE: () if kernel.source is None else (kernel.source.name,),
        Layer.PTX: tuple(one.function.name for one in kernel.ptx),
        Layer.NCU: tuple(one.summary.kernel for one in kernel.ncu),
        Layer.PROFILER: tuple(one.total.name for one in kernel.runs),
    }
    return ReconciledKernelPart(
        name=encodable(kernel.name),
        names={layer: tuple(map(encodable, dict.fromkeys(found))) for layer, found in names.items() if found},
        overloaded=kernel.source is not None and kernel.source.overloaded,
        runtime_share_pct=_percent(kernel.runtime_share),
    )


def _diagnosis(found: Diagnosis) -> ReconciledDiagnosisPart:
    return ReconciledDiagnosisPart(
        diagnosis=found.rule.name,
        title=found.rule.title,
        kernel=encodable(found.kernel.name),
        confidence=found.confidence.label,
        layers=found.layers,
        runtime_share_pct=_percent(found.kernel.runtime_share),
        agreeing=tuple(map(_signal, found.agreeing)),
        contradicting=tuple(map(_signal, found.contradicting)),
    )


def _signal(signal: Signal) -> SignalPart:
    return SignalPart(
        layer=signal.layer,
        label=signal.label,
        grade=signal.grade.label,
        about=signal.about or None,
        evidence=encodable(signal.evidence),
        line=signal.line,
    )


def _unreconciled(found: Unreconciled) -> UnreconciledPart:
    return UnreconciledPart(
        why=found.why,
        layer=found.layer,
        label=found.label,
        kernel=None if found.kernel is None else encodable(found.kernel.name),
        evidence=encodable(found.evidence),
        reason=encodable(found.reason),
        diagnosis=None if found.diagnosis is None else found.diagnosis.name,
        line=found.line,
    )


def _missing(found: MissingEvidence) -> MissingEvidencePart:
    return MissingEvidencePart(
        diagnosis=found.rule.name,
        kernel=encodable(found.kernel.name),
        layer=found.layer,
        confidence=None if found.confidence is None else found.confidence.label,
        confidence_if_confirmed=found.confirmed.label,
        what=found.what,
        metrics=found.metrics,
        command=None if found.command is None else encodable(found.command),
        fallback=found.fallback,
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share
