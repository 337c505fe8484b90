from __future__ import annotations

import dataclasses
import json
import math
from importlib import resources

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from frx_graph.advice import Advice, Environment, GraphSummary, LayoutSpan, RooflinePoint, Timings, Totals
from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.records import Copy, Evidence, Finding, Refusal, Saving
from frx_graph.reports.advice.json_report import render_json
from frx_graph.reports.advice.schema import AdviceDocument, CopyModel, FindingModel, GraphModel, SiteModel

SCHEMA = resources.files("frx_graph.reports").joinpath("frx_advice_v1.schema.json")


def _valid(text: str) -> dict:
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(document)
    return document


def test_golden(observed, golden):
    golden("advice.json", render_json(observed))


@pytest.mark.parametrize("name", ["advice", "observed", "empty", "failed"])
def test_round_trip(name, request):
    advice = request.getfixturevalue(name)
    text = render_json(advice)
    _valid(text)
    assert read_back(text) == advice
    assert render_json(read_back(text)) == text


def test_hostile_names_and_numbers(hostile):
    document = _valid(render_json(hostile))
    assert document["findings"][0]["saving"] == {
        "predicted_pct_min": None, "predicted_pct_max": None, "measured_pct": None,
    }  # fmt: skip
    assert document["totals"]["bandwidth_overhead_pct"] is None
    assert document["environment"]["bandwidth_bytes_per_s"] is None
    assert document["graphs"][0]["roofline"][0]["seconds"] is None
    assert read_back(render_json(hostile)).findings[0].bytes_per_step == hostile.findings[0].bytes_per_step


def test_unknown_is_null(advice):
    unknown = json.loads(render_json(advice))["findings"][3]
    assert unknown["site"] == {"file": None, "line": None, "function": None, "module_path": None}
    assert unknown["bytes_per_step"] is None
    assert read_back(render_json(advice)).findings[3].site == UNKNOWN_SITE


def test_observed_is_null_unless_a_step_was_observed(advice):
    assert json.loads(render_json(advice))["observed"] is None
    none_seen = dataclasses.replace(advice, observed=())
    assert json.loads(render_json(none_seen))["observed"] == []
    assert read_back(render_json(none_seen)).observed == ()


def test_fields_of_a_later_version_are_passed_over(advice):
    document = json.loads(render_json(advice))
    document["findings"][0]["added_later"] = 1
    assert read_back(json.dumps(document)) == advice


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"schema": "frx_advice_v1"}', "[" * 100_000, '{"schema": "frx_advice_v2"}', "\udcff"],
)
def test_malformed_document_is_refused(text):
    with pytest.raises(ValidationError):
        AdviceDocument.model_validate_json(text)


def test_nan_in_a_document_is_refused(advice):
    text = render_json(advice).replace('"predicted_pct_min": 6.1', '"predicted_pct_min": NaN')
    with pytest.raises(ValidationError, match="predicted_pct_min"):
        AdviceDocument.model_validate_json(text)


@given(text=st.text(st.characters(), max_size=30), number=st.floats() | st.none())
@example(text="half of a pair: \ud800", number=None)
def test_any_text_and_number_survive(advice, text, number):
    finding = dataclasses.replace(advice.findings[0], title=text, saving=Saving(predicted_pct_min=number))
    again = read_back(render_json(dataclasses.replace(advice, findings=(finding,)))).findings[0]
    assert again.title == text.encode("utf-8", "backslashreplace").decode()  # what UTF-8 cannot hold is spelt out
    expected = number if number is not None and math.isfinite(number) else None
    assert again.saving.predicted_pct_min == expected


def read_back(text: str) -> Advice:
    """The advice that the text of a document holds."""
    return from_document(AdviceDocument.model_validate_json(text))


def from_document(document: AdviceDocument) -> Advice:
    """The advice that a document describes."""
    environment = document.environment
    return Advice(
        target=document.target,
        environment=Environment(
            **environment.model_dump(exclude={"peak_flops"}),
            peak_flops=tuple((peak.dtype, peak.flops_per_s) for peak in environment.peak_flops),
        ),
        graphs=tuple(_graph(graph) for graph in document.graphs),
        findings=tuple(_finding(finding) for finding in document.findings),
        refusals=tuple(
            Refusal(r.subject, r.reason, r.nodes, None if r.site is None else _site(r.site)) for r in document.refusals
        ),
        copies=tuple(_copy(copy) for copy in document.copies),
        totals=Totals(**document.totals.model_dump()),
        timings=Timings(**document.timings.model_dump()),
        observed=None if document.observed is None else tuple(_copy(copy) for copy in document.observed),
    )


def _site(site: SiteModel) -> CallSite:
    return CallSite(
        file=UNKNOWN_SITE.file if site.file is None else site.file,
        line=site.line or UNKNOWN_SITE.line,
        function=UNKNOWN_SITE.function if site.function is None else site.function,
        module_path=site.module_path or "",
    )


def _copy(copy: CopyModel) -> Copy:
    return Copy(**copy.model_dump(exclude={"site"}), site=_site(copy.site))


def _finding(finding: FindingModel) -> Finding:
    plain = finding.model_dump(exclude={"site", "saving", "evidence", "copies", "graph_id"})
    return Finding(
        **plain,
        site=_site(finding.site),
        saving=Saving(**finding.saving.model_dump()),
        evidence=tuple(Evidence(**fact.model_dump()) for fact in finding.evidence),
        copies=tuple(_copy(copy) for copy in finding.copies),
        graph_id=finding.graph_id or "",
    )


def _graph(graph: GraphModel) -> GraphSummary:
    return GraphSummary(
        graph_id=graph.graph_id,
        origin=graph.origin,
        train=graph.train,
        ops=graph.ops,
        spans=tuple(LayoutSpan(**span.model_dump()) for span in graph.spans),
        roofline=tuple(
            RooflinePoint(**point.model_dump(exclude={"site"}), site=_site(point.site)) for point in graph.roofline
        ),
    )
