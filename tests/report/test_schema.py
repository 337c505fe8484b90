from __future__ import annotations

import io
import json

import jsonschema

from frx_graph.report import schema

FINDING_FIELDS = {
    "rule", "title", "severity", "site", "nodes", "count_per_step", "bytes_per_step", "saving", "effort", "risk", "fix",
    "confidence", "evidence",
}  # fmt: skip


def test_published_file_is_generated_from_the_models():
    written = io.StringIO()
    schema.main(written)
    assert schema.published_schema() == written.getvalue()


def test_published_file_is_a_json_schema_with_every_promised_field():
    document = json.loads(schema.published_schema())
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
