"""The advice as an `frx_advice_v1` JSON document."""

from __future__ import annotations

import json
import math

from frx_graph.advice import Advice, Environment, GraphSummary
from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.evidence.measurement import Measurement
from frx_graph.records import Copy, Evidence, Finding, Refusal
from frx_graph.reports.advice.schema import (
    AdviceDocument,
    CopyModel,
    EnvironmentModel,
    EvidenceModel,
    FindingModel,
    GraphModel,
    MeasurementModel,
    PeakModel,
    ProvenanceModel,
    RefusalModel,
    RooflinePointModel,
    SavingModel,
    SiteModel,
    SpanModel,
    TimingsModel,
    TotalsModel,
)
from frx_graph.reports.render.plain_text import encodable
from frx_graph.reports.render.quantities import finite


def render_json(advice: Advice) -> str:
    """One JSON document; ASCII, so that any name survives any terminal and file."""
    document = to_document(advice).model_dump(mode="json", by_alias=True)
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def to_document(advice: Advice) -> AdviceDocument:
    """The advice as the document's model. Unknown sites and numbers that are not finite become null."""
    return AdviceDocument(
        schema="frx_advice_v1",
        target=encodable(advice.target),
        environment=_environment_model(advice.environment),
        graphs=tuple(_graph_model(graph) for graph in advice.graphs),
        findings=tuple(_finding_model(finding) for finding in advice.findings),
        refusals=tuple(_refusal_model(refusal) for refusal in advice.refusals),
        totals=TotalsModel(
            ops_scanned=advice.totals.ops_scanned,
            copies_per_step=advice.totals.copies_per_step,
            copy_bytes_per_step=advice.totals.copy_bytes_per_step,
            bandwidth_overhead_pct=finite(advice.totals.bandwidth_overhead_pct),
            quick_wins=advice.totals.quick_wins,
        ),
        timings=TimingsModel(
            capture_s=finite(advice.timings.capture_s),
            analysis_s=advice.timings.analysis_s,
            measure_s=finite(advice.timings.measure_s),
            observe_s=finite(advice.timings.observe_s),
        ),
        copies=tuple(_copy_model(copy) for copy in advice.copies),
        observed=None if advice.observed is None else tuple(_copy_model(copy) for copy in advice.observed),
    )


def _site_model(site: CallSite) -> SiteModel:
    return SiteModel(
        file=None if site.file == UNKNOWN_SITE.file else encodable(site.file),
        line=site.line if site.line > 0 else None,
        function=None if site.function == UNKNOWN_SITE.function else encodable(site.function),
        module_path=encodable(site.module_path) or None,
    )


def _copy_model(copy: Copy) -> CopyModel:
    return CopyModel(
        node=encodable(copy.node),
        site=_site_model(copy.site),
        operator=encodable(copy.operator),
        kind=copy.kind,
        role=copy.role,
        value=encodable(copy.value),
        bytes=copy.bytes,
        count=copy.count,
        phase=copy.phase,
        basis=copy.basis,
        cause=encodable(copy.cause),
    )


def _finding_model(finding: Finding) -> FindingModel:
    return FindingModel(
        rule=finding.rule,
        title=encodable(finding.title),
        severity=finding.severity,
        site=_site_model(finding.site),
        nodes=tuple(encodable(node) for node in finding.nodes),
        count_per_step=finding.count_per_step,
        bytes_per_step=finding.bytes_per_step,
        saving=SavingModel(
            predicted_pct_min=finite(finding.saving.predicted_pct_min),
            predicted_pct_max=finite(finding.saving.predicted_pct_max),
            measured_pct=finite(finding.saving.measured_pct),
        ),
        effort=finding.effort,
        risk=finding.risk,
        fix=encodable(finding.fix),
        confidence=finding.confidence,
        evidence=tuple(map(_evidence_model, finding.evidence)),
        basis=finding.basis,
        copies=tuple(_copy_model(copy) for copy in finding.copies),
        graph_id=encodable(finding.graph_id) or None,
        modules=tuple(encodable(module) for module in finding.modules),
    )


def _evidence_model(fact: Evidence) -> EvidenceModel:
    return EvidenceModel(
        text=encodable(fact.text),
        source=encodable(fact.source),
        basis=fact.basis,
        measurements=tuple(map(_measurement_model, fact.measurements)),
    )


def _measurement_model(fact: Measurement) -> MeasurementModel:
    at = fact.provenance
    return MeasurementModel(
        metric=encodable(fact.metric),
        value=finite(fact.value),
        unit=encodable(fact.unit),
        subject=encodable(fact.subject),
        provenance=ProvenanceModel(source=encodable(at.source), line=at.line, name=encodable(at.name)),
    )


def _refusal_model(refusal: Refusal) -> RefusalModel:
    return RefusalModel(
        subject=encodable(refusal.subject),
        reason=encodable(refusal.reason),
        nodes=tuple(encodable(node) for node in refusal.nodes),
        site=None if refusal.site is None else _site_model(refusal.site),
    )


def _graph_model(graph: GraphSummary) -> GraphModel:
    return GraphModel(
        graph_id=encodable(graph.graph_id),
        origin=encodable(graph.origin),
        train=graph.train,
        ops=graph.ops,
        spans=tuple(
            SpanModel(
                module_path=encodable(span.module_path),
                phase=span.phase,
                layout=encodable(span.layout),
                ops=span.ops,
                bytes=span.bytes,
                copies=span.copies,
                copy_bytes=span.copy_bytes,
            )
            for span in graph.spans
        ),
        roofline=tuple(
            RooflinePointModel(
                operator=encodable(point.operator),
                site=_site_model(point.site),
                phase=point.phase,
                dtype=encodable(point.dtype),
                count=point.count,
                flops=point.flops,
                bytes=point.bytes,
                seconds=finite(point.seconds),
            )
            for point in graph.roofline
        ),
    )


def _environment_model(environment: Environment) -> EnvironmentModel:
    return EnvironmentModel(
        frx_version=environment.frx_version,
        torch_version=environment.torch_version,
        python_version=environment.python_version,
        platform=encodable(environment.platform),
        device=encodable(environment.device),
        device_name=encodable(environment.device_name),
        inner=encodable(environment.inner),
        threads=environment.threads,
        bandwidth_bytes_per_s=finite(environment.bandwidth_bytes_per_s),
        peak_flops=tuple(
            PeakModel(dtype=dtype, flops_per_s=flops) for dtype, flops in environment.peak_flops if math.isfinite(flops)
        ),
        contract=None if environment.contract is None else encodable(environment.contract),
    )
