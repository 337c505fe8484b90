from __future__ import annotations

import dataclasses
import io
import json
from importlib import resources

import jsonschema
import pytest

from frx_graph import advice, records
from frx_graph.capture.call_site import CallSite
from frx_graph.reports.advice import schema

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_advice_v1.schema.json").read_text(encoding="utf-8")
FINDING_FIELDS = {
    "rule", "title", "severity", "site", "nodes", "count_per_step", "bytes_per_step", "saving", "effort", "risk", "fix",
    "confidence", "evidence",
}  # fmt: skip


def test_published_file_is_generated_from_the_models():
    written = io.StringIO()
    schema.main(written)
    assert written.getvalue() == PUBLISHED


def test_published_file_is_a_json_schema_with_every_promised_field():
    document = json.loads(PUBLISHED)
    jsonschema.Draft202012Validator.check_schema(document)
    assert {"schema", "target", "environment", "graphs", "findings", "refusals", "totals", "timings"} <= set(
        document["required"]
    )
    definitions = document["$defs"]
    assert set(definitions["FindingModel"]["required"]) >= FINDING_FIELDS
    assert set(definitions["SiteModel"]["required"]) == {"file", "line", "function", "module_path"}
    assert set(definitions["TotalsModel"]["required"]) == {
        "ops_scanned", "copies_per_step", "copy_bytes_per_step", "bandwidth_overhead_pct", "quick_wins",
    }  # fmt: skip
    assert set(definitions["SavingModel"]["required"]) == {"predicted_pct_min", "predicted_pct_max", "measured_pct"}


@pytest.mark.parametrize(
    ("record", "model"),
    [
        (advice.Advice, schema.AdviceDocument),
        (advice.Environment, schema.EnvironmentModel),
        (advice.GraphSummary, schema.GraphModel),
        (advice.LayoutSpan, schema.SpanModel),
        (advice.RooflinePoint, schema.RooflinePointModel),
        (advice.Totals, schema.TotalsModel),
        (advice.Timings, schema.TimingsModel),
        (records.Finding, schema.FindingModel),
        (records.Saving, schema.SavingModel),
        (records.Evidence, schema.EvidenceModel),
        (records.Copy, schema.CopyModel),
        (records.Refusal, schema.RefusalModel),
        (CallSite, schema.SiteModel),
    ],
)
def test_every_field_of_a_record_is_published(record, model):
    assert {field.name for field in dataclasses.fields(record)} == set(model.model_fields) - {"schema_name"}
