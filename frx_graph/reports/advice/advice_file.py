"""Advice that was written as JSON, read again: the inverse of `json_report`."""

from __future__ import annotations

import math
from pathlib import Path

from pydantic import ValidationError

from frx_graph.advice import Advice, Environment, GraphSummary, LayoutSpan, RooflinePoint, Timings, Totals
from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.errors import EvidenceError
from frx_graph.evidence.measurement import Measurement, Provenance
from frx_graph.records import Copy, Evidence, Finding, Refusal, Saving
from frx_graph.reports.advice.schema import (
    SCHEMA_NAME,
    AdviceDocument,
    CopyModel,
    EnvironmentModel,
    EvidenceModel,
    FindingModel,
    GraphModel,
    MeasurementModel,
    RefusalModel,
    RooflinePointModel,
    SiteModel,
)

_BEGINNING = 4096
"""Bytes in which the schema's name stands."""
_HINT = "frx advise --format json --output advice.json writes one"


def is_advice(path: Path) -> bool:
    """Whether the file at `path` says that it is advice."""
    try:
        with path.open("rb") as file:
            start = file.read(_BEGINNING)
    except OSError:
        return False
    return start.lstrip().startswith(b"{") and f'"{SCHEMA_NAME}"'.encode() in start


def read_advice_document(path: Path) -> AdviceDocument:
    """The document at `path`. Raises `EvidenceError` for what is none."""
    try:
        return AdviceDocument.model_validate_json(path.read_bytes())
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise EvidenceError(f"{path}: is no {SCHEMA_NAME}: {where}: {first['msg']}", _HINT) from None


def advice_of(document: AdviceDocument) -> Advice:
    """The records that a document was made of; what it does not tell is unknown."""
    totals, timings = document.totals, document.timings
    return Advice(
        target=document.target,
        environment=_environment(document.environment),
        graphs=tuple(map(_graph, document.graphs)),
        findings=tuple(map(_finding, document.findings)),
        refusals=tuple(map(_refusal, document.refusals)),
        copies=tuple(map(_copy, document.copies)),
        totals=Totals(
            totals.ops_scanned,
            totals.copies_per_step,
            totals.copy_bytes_per_step,
            totals.bandwidth_overhead_pct,
            totals.quick_wins,
        ),
        timings=Timings(timings.capture_s, timings.analysis_s, timings.measure_s, timings.observe_s),
        observed=None if document.observed is None else tuple(map(_copy, document.observed)),
    )


def _site(model: SiteModel) -> CallSite:
    return CallSite(
        file=UNKNOWN_SITE.file if model.file is None else model.file,
        line=UNKNOWN_SITE.line if model.line is None else model.line,
        function=UNKNOWN_SITE.function if model.function is None else model.function,
        module_path=model.module_path or "",
    )


def _copy(model: CopyModel) -> Copy:
    return Copy(
        node=model.node,
        site=_site(model.site),
        operator=model.operator,
        kind=model.kind,
        role=model.role,
        value=model.value,
        bytes=model.bytes,
        count=model.count,
        phase=model.phase,
        basis=model.basis,
        cause=model.cause,
    )


def _finding(model: FindingModel) -> Finding:
    saving = model.saving
    return Finding(
        rule=model.rule,
        title=model.title,
        severity=model.severity,
        site=_site(model.site),
        nodes=model.nodes,
        count_per_step=model.count_per_step,
        bytes_per_step=model.bytes_per_step,
        saving=Saving(saving.predicted_pct_min, saving.predicted_pct_max, saving.measured_pct),
        effort=model.effort,
        risk=model.risk,
        fix=model.fix,
        confidence=model.confidence,
        basis=model.basis,
        evidence=tuple(map(_evidence, model.evidence)),
        copies=tuple(map(_copy, model.copies)),
        graph_id=model.graph_id or "",
        modules=model.modules,
    )


def _evidence(model: EvidenceModel) -> Evidence:
    return Evidence(model.text, model.source, model.basis, tuple(map(_measurement, model.measurements)))


def _measurement(model: MeasurementModel) -> Measurement:
    at = model.provenance
    value = math.nan if model.value is None else model.value
    return Measurement(model.metric, value, model.unit, model.subject, Provenance(at.source, at.line, at.name))


def _refusal(model: RefusalModel) -> Refusal:
    return Refusal(model.subject, model.reason, model.nodes, None if model.site is None else _site(model.site))


def _graph(model: GraphModel) -> GraphSummary:
    return GraphSummary(
        graph_id=model.graph_id,
        origin=model.origin,
        train=model.train,
        ops=model.ops,
        spans=tuple(
            LayoutSpan(span.module_path, span.phase, span.layout, span.ops, span.bytes, span.copies, span.copy_bytes)
            for span in model.spans
        ),
        roofline=tuple(map(_point, model.roofline)),
    )


def _point(model: RooflinePointModel) -> RooflinePoint:
    return RooflinePoint(
        operator=model.operator,
        site=_site(model.site),
        phase=model.phase,
        dtype=model.dtype,
        count=model.count,
        flops=model.flops,
        bytes=model.bytes,
        seconds=model.seconds,
    )


def _environment(model: EnvironmentModel) -> Environment:
    return Environment(
        frx_version=model.frx_version,
        torch_version=model.torch_version,
        python_version=model.python_version,
        platform=model.platform,
        device=model.device,
        device_name=model.device_name,
        inner=model.inner,
        threads=model.threads,
        bandwidth_bytes_per_s=model.bandwidth_bytes_per_s,
        peak_flops=tuple((peak.dtype, peak.flops_per_s) for peak in model.peak_flops),
        contract=model.contract,
    )
