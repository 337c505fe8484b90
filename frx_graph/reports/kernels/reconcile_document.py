"""Diagnoses from several layers of evidence as JSON: `frx_reconcile_v1`, under the mode "reconciliation"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from frx_graph.analyzers.layers import Layers
from frx_graph.analyzers.reconcile.confidence import ConfidenceLabel
from frx_graph.analyzers.reconcile.matched_kernels import MatchedKernel
from frx_graph.analyzers.reconcile.reconciliation import Diagnosis, Reconciliation, Why
from frx_graph.analyzers.reconcile.signal import GradeLabel, Layer, Signal
from frx_graph.reports.render.document import Part, Text, read_from
from frx_graph.support.plain_text import escape_surrogates


class ReconciledKernelPart(Part):
    """A kernel, with its name in each layer."""

    name: Text
    names: dict[Layer, tuple[str, ...]]
    overloaded: bool = Field(description="true: several kernels of the source have this name")
    runtime_share_pct: float | None = Field(description="of all measured kernels, or of the run")


class SignalPart(Part):
    """Evidence of one layer for or against a diagnosis."""

    layer: Layer
    label: str = Field(description="its rule, label or counter")
    grade: GradeLabel = read_from("grade.label")
    about: str | None = Field(description="the part of the diagnosis, such as loads; null: all parts")
    evidence: Text
    line: int | None = Field(description="of the source")


class ReconciledDiagnosisPart(Part):
    """A cause that slows one kernel down."""

    diagnosis: str = read_from("rule.name")
    title: str = read_from("rule.title")
    kernel: Text = read_from("kernel.name")
    confidence: ConfidenceLabel = read_from("confidence.label")
    layers: tuple[Layer, ...] = Field(description="those that agree")
    runtime_share_pct: float | None
    agreeing: tuple[SignalPart, ...]
    contradicting: tuple[SignalPart, ...]


class UnreconciledPart(Part):
    """A finding of one layer that is in no diagnosis."""

    why: Why
    layer: Layer
    label: str
    kernel: Text | None = read_from("kernel.name", "null: the whole run")
    evidence: Text
    reason: Text
    diagnosis: str | None = read_from("diagnosis.name", "the diagnosis that it would support; null: none")
    line: int | None


class MissingEvidencePart(Part):
    """Missing evidence for a diagnosis."""

    diagnosis: str = read_from("rule.name")
    kernel: Text = read_from("kernel.name")
    layer: Layer
    confidence: ConfidenceLabel | None = read_from("confidence.label", "now; null: not yet a diagnosis")
    confidence_if_confirmed: ConfidenceLabel = read_from("confirmed.label")
    what: str
    metrics: tuple[str, ...] = Field(description="of Nsight Compute")
    command: Text | None = Field(description="for a shell; for the layer profiler, Python code")
    fallback: str | None = Field(description="collects more than is needed")


class ReconcileResult(Part):
    """The joint findings."""

    schema_: Literal["frx_reconcile_v1"] = Field(default="frx_reconcile_v1", alias="schema")
    layers_available: tuple[Layer, ...]
    files: dict[Layer, str]
    kernels: tuple[ReconciledKernelPart, ...]
    primary_diagnosis: str | None
    diagnoses: tuple[ReconciledDiagnosisPart, ...]
    unreconciled: tuple[UnreconciledPart, ...]
    missing_evidence: tuple[MissingEvidencePart, ...]


class ReconcileDocument(Part):
    """Wrapper shared by all analyses."""

    mode: Literal["reconciliation"] = "reconciliation"
    result: ReconcileResult


def build_reconcile_document(layers: Layers, found: Reconciliation) -> ReconcileDocument:
    """Return the document of these layers and the joint diagnoses."""
    diagnoses = tuple(map(_build_diagnosis, found.diagnoses))
    return ReconcileDocument(
        result=ReconcileResult(
            layers_available=found.layers_available,
            files=_list_files(layers),
            kernels=tuple(map(_build_kernel, found.kernels)),
            primary_diagnosis=diagnoses[0].diagnosis if diagnoses else None,
            diagnoses=diagnoses,
            unreconciled=tuple(map(UnreconciledPart.from_record, found.unreconciled)),
            missing_evidence=tuple(map(MissingEvidencePart.from_record, found.missing)),
        )
    )


def _list_files(layers: Layers) -> dict[Layer, str]:
    found: dict[Layer, str] = {}
    if layers.source is not None:
        found[Layer.SOURCE] = escape_surrogates(layers.source.source.source)
    if layers.ptx is not None:
        found[Layer.PTX] = escape_surrogates(layers.ptx.module.source)
    if layers.ncu is not None:
        found[Layer.NCU] = escape_surrogates(layers.ncu.export.source)
    if layers.trace is not None:
        found[Layer.PROFILER] = escape_surrogates(str(layers.trace.trace.tree.trace.path))
    return found


def _build_kernel(kernel: MatchedKernel) -> ReconciledKernelPart:
    names: Mapping[Layer, tuple[str, ...]] = {
        Layer.SOURCE: () if kernel.source is None else (kernel.source.name,),
        Layer.PTX: tuple(one.function.name for one in kernel.ptx),
        Layer.NCU: tuple(one.summary.kernel for one in kernel.ncu),
        Layer.PROFILER: tuple(one.total.name for one in kernel.runs),
    }
    return ReconciledKernelPart.from_record(
        kernel,
        names={layer: tuple(map(escape_surrogates, dict.fromkeys(found))) for layer, found in names.items() if found},
        overloaded=kernel.source is not None and kernel.source.overloaded,
        runtime_share_pct=_to_percent(kernel.runtime_share),
    )


def _build_diagnosis(found: Diagnosis) -> ReconciledDiagnosisPart:
    return ReconciledDiagnosisPart.from_record(
        found,
        runtime_share_pct=_to_percent(found.kernel.runtime_share),
        agreeing=tuple(map(_build_signal, found.agreeing)),
        contradicting=tuple(map(_build_signal, found.contradicting)),
    )


def _build_signal(signal: Signal) -> SignalPart:
    return SignalPart.from_record(signal, about=signal.about or None)


def _to_percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share
