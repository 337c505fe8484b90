"""Diagnoses from several layers of evidence as JSON: `frx_reconcile_v1`, under the mode "reconciliation"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from frx_graph.analyzers.layers import Layers
from frx_graph.analyzers.reconcile.confidence import ConfidenceLabel
from frx_graph.analyzers.reconcile.matched_kernels import MatchedKernel
from frx_graph.analyzers.reconcile.reconciliation import Reconciliation, Why
from frx_graph.analyzers.reconcile.signal import GradeLabel, Layer
from frx_graph.reports.render.document import Part, Percent, Text, TextOrNull, WrittenPart, read_from
from frx_graph.support.plain_text import escape_surrogates


class ReconciledKernelPart(WrittenPart):
    """A kernel, with its name in each layer."""

    name: Text
    names: dict[Layer, tuple[str, ...]]
    overloaded: bool = read_from(
        "source.overloaded", "true: several kernels of the source have this name", default=False
    )
    runtime_share_pct: Percent | None = read_from("runtime_share", "of all measured kernels, or of the run")


class SignalPart(Part):
    """Evidence of one layer for or against a diagnosis."""

    layer: Layer
    label: str = Field(description="its rule, label or counter")
    grade: GradeLabel = read_from("grade.label")
    about: TextOrNull = Field(description="the part of the diagnosis, such as loads; null: all parts")
    evidence: Text
    line: int | None = Field(description="of the source")


class ReconciledDiagnosisPart(Part):
    """A cause that slows one kernel down."""

    diagnosis: str = read_from("rule.name")
    title: str = read_from("rule.title")
    kernel: Text = read_from("kernel.name")
    confidence: ConfidenceLabel = read_from("confidence.label")
    layers: tuple[Layer, ...] = Field(description="those that agree")
    runtime_share_pct: Percent | None = read_from("kernel.runtime_share")
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
    missing_evidence: tuple[MissingEvidencePart, ...] = read_from("missing")


class ReconcileDocument(Part):
    """Wrapper shared by all analyses."""

    mode: Literal["reconciliation"] = "reconciliation"
    result: ReconcileResult


def build_reconcile_document(layers: Layers, found: Reconciliation) -> ReconcileDocument:
    """Return the document of these layers and the joint diagnoses."""
    return ReconcileDocument(
        result=ReconcileResult.from_record(
            found,
            files=_list_files(layers),
            kernels=tuple(map(_build_kernel, found.kernels)),
            primary_diagnosis=found.diagnoses[0].rule.name if found.diagnoses else None,
        )
    )


def _list_files(layers: Layers) -> dict[Layer, str]:
    files = {
        Layer.SOURCE: None if layers.source is None else layers.source.source.source,
        Layer.PTX: None if layers.ptx is None else layers.ptx.module.source,
        Layer.NCU: None if layers.ncu is None else layers.ncu.export.source,
        Layer.PROFILER: None if layers.trace is None else str(layers.trace.trace.tree.trace.path),
    }
    return {layer: escape_surrogates(file) for layer, file in files.items() if file is not None}


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
    )
