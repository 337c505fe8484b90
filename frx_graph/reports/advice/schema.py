"""`frx_advice_v1`: the JSON document that one advice is written as.

The published file `frx_advice_v1.schema.json` is generated from these models:

    python -m frx_graph.reports.advice.schema > frx_graph/reports/frx_advice_v1.schema.json

Within v1 fields may be added; none is removed and none changes its meaning, so readers pass over fields they do not
know. Unknown is null. Bytes are memory traffic, read plus written.
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal, TextIO

from pydantic import BaseModel, ConfigDict, Field

from frx_graph.capture.captured_graph import Phase
from frx_graph.records import Basis, CopyKind, Effort, OperandRole, Risk, Severity
from frx_graph.reports.render.published_schema import published_schema

SCHEMA_NAME = "frx_advice_v1"
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
PerSecond = Annotated[float, Field(ge=1.0, le=1e24)]
"""A million times what a device does, so that whatever is made of it is a number."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, use_attribute_docstrings=True)


class SiteModel(_Model):
    """A place in the user's code."""

    file: str | None
    """Path as the interpreter knows it."""
    line: int | None = Field(ge=1)
    function: str | None
    module_path: str | None
    """Dotted from the root module, `model.layer3.2.conv1`; `*` stands for the parts in which several differ."""


class CopyModel(_Model):
    """The layout copies of one kind and role that a step makes at one node."""

    node: str
    site: SiteModel
    operator: str
    kind: CopyKind
    role: OperandRole
    value: str
    """The value that is copied."""
    bytes: Count
    """Traffic, summed over `count` copies."""
    count: Count
    phase: Phase
    basis: Basis
    cause: str
    """What made the copy necessary."""


class SavingModel(_Model):
    """Expected saving in percent of the step: of its memory traffic, or of its modelled time where operators were timed
    in both layouts."""

    predicted_pct_min: float | None
    predicted_pct_max: float | None
    measured_pct: float | None
    """What a trial or an anchor measurement showed; in advice on a trace, the part of the device's busy time that the
    copies took."""


class ProvenanceModel(_Model):
    """Where a number stands."""

    source: str
    """A file, or the program that said it."""
    line: int | None = Field(ge=1)
    """Null where the source has no lines."""
    name: str
    """What the source calls it."""


class MeasurementModel(_Model):
    """One number from outside."""

    metric: str
    value: float | None
    """Null where it is not finite."""
    unit: str
    subject: str
    """What was measured: a launch of a kernel, an operator."""
    provenance: ProvenanceModel


class EvidenceModel(_Model):
    """One fact about a finding."""

    text: str
    source: str
    """Where it was read or measured."""
    basis: Basis
    measurements: tuple[MeasurementModel, ...] = ()
    """The numbers that it rests on, as far as they were read from files of a run."""


class FindingModel(_Model):
    """One layout problem at one call site, with its fix."""

    rule: str
    title: str
    severity: Severity
    site: SiteModel
    nodes: tuple[str, ...]
    count_per_step: Count
    bytes_per_step: Count | None
    """Traffic that the fix would save."""
    saving: SavingModel
    effort: Effort
    risk: Risk
    fix: str
    confidence: float = Field(ge=0, le=1)
    evidence: tuple[EvidenceModel, ...]
    basis: Basis
    """Whether a real step showed the problem or it was worked out from the graph."""
    copies: tuple[CopyModel, ...]
    """The layout copies that the finding answers for; each copy belongs to one finding."""
    graph_id: str | None
    modules: tuple[str, ...]
    """All module paths at which the call site does this."""


class RefusalModel(_Model):
    """Something that was looked at and left alone, with the reason."""

    subject: str
    reason: str
    nodes: tuple[str, ...]
    site: SiteModel | None


class SpanModel(_Model):
    """Consecutive operators of one module that run in one layout."""

    module_path: str
    phase: Phase
    layout: str
    ops: Count
    bytes: Count
    copies: Count
    copy_bytes: Count
    """The part of `bytes` that layout copies make."""


class RooflinePointModel(_Model):
    """All calls of one operator at one call site."""

    operator: str
    site: SiteModel
    phase: Phase
    dtype: str
    count: Count
    flops: Count
    bytes: Count
    seconds: float | None = Field(ge=0)
    """Measured time of all calls; null unless a trace or an observation timed them."""


class GraphModel(_Model):
    """One captured graph."""

    graph_id: str
    origin: str
    train: bool
    ops: Count
    spans: tuple[SpanModel, ...]
    roofline: tuple[RooflinePointModel, ...]


class PeakModel(_Model):
    """Peak arithmetic of the device in one dtype."""

    dtype: str
    flops_per_s: PerSecond


class EnvironmentModel(_Model):
    """Where the advice was made."""

    frx_version: str
    torch_version: str
    python_version: str
    platform: str
    device: str
    device_name: str
    inner: str
    """The compiler whose program the advice is about: `eager`, `inductor`, ..."""
    threads: int | None
    bandwidth_bytes_per_s: PerSecond | None
    peak_flops: tuple[PeakModel, ...]
    contract: str | None
    """The operator layout contract that the predictions rest on."""


class TotalsModel(_Model):
    """The whole step."""

    ops_scanned: Count
    copies_per_step: Count
    copy_bytes_per_step: Count | None
    """Null where a trace shows copies without their shapes."""
    bandwidth_overhead_pct: float | None
    """Copy traffic in percent of all traffic."""
    quick_wins: Count
    """Findings that one line fixes at low or medium risk."""


class TimingsModel(_Model):
    """Seconds that each part of the advice took; null for a part that did not run."""

    capture_s: float | None
    analysis_s: float
    measure_s: float | None
    observe_s: float | None


class AdviceDocument(_Model):
    """Ranked layout findings for one PyTorch program, what was refused and why, and the numbers behind them."""

    schema_name: Literal["frx_advice_v1"] = Field(alias="schema")
    target: str
    environment: EnvironmentModel
    graphs: tuple[GraphModel, ...]
    """Empty where nothing could be captured: then the absence of findings says nothing about the program."""
    findings: tuple[FindingModel, ...]
    """Best first."""
    refusals: tuple[RefusalModel, ...]
    totals: TotalsModel
    timings: TimingsModel
    copies: tuple[CopyModel, ...]
    """All predicted layout copies of one step."""
    observed: tuple[CopyModel, ...] | None
    """The layout copies that a real step showed; null where none was run."""


def generate_schema() -> str:
    """The JSON Schema of `AdviceDocument`, as the published file has it."""
    return published_schema(SCHEMA_NAME, AdviceDocument)


def main(out: TextIO = sys.stdout) -> None:
    """Write the schema."""
    out.write(generate_schema())


if __name__ == "__main__":
    main()
