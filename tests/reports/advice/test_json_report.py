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

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.records import Saving
from frx_graph.reports.advice.advice_file import parse_advice, render_json

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
    assert parse_advice(text) == advice
    assert render_json(parse_advice(text)) == text


def test_hostile_names_and_numbers(hostile):
    document = _valid(render_json(hostile))
    assert document["findings"][0]["saving"] == {
        "predicted_pct_min": None, "predicted_pct_max": None, "measured_pct": None,
    }  # fmt: skip
    assert document["totals"]["bandwidth_overhead_pct"] is None
    assert document["environment"]["bandwidth_bytes_per_s"] is None
    assert document["graphs"][0]["roofline"][0]["seconds"] is None
    assert parse_advice(render_json(hostile)).findings[0].bytes_per_step == hostile.findings[0].bytes_per_step


def test_unknown_is_null(advice):
    unknown = json.loads(render_json(advice))["findings"][3]
    assert unknown["site"] == {"file": None, "line": None, "function": None, "module_path": None}
    assert unknown["bytes_per_step"] is None
    assert parse_advice(render_json(advice)).findings[3].site == UNKNOWN_SITE


def test_observed_is_null_unless_a_step_was_observed(advice):
    assert json.loads(render_json(advice))["observed"] is None
    none_seen = dataclasses.replace(advice, observed=())
    assert json.loads(render_json(none_seen))["observed"] == []
    assert parse_advice(render_json(none_seen)).observed == ()


def test_fields_of_a_later_version_are_passed_over(advice):
    document = json.loads(render_json(advice))
    document["findings"][0]["added_later"] = 1
    assert parse_advice(json.dumps(document)) == advice


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"schema": "frx_advice_v1"}', "[" * 100_000, '{"schema": "frx_advice_v2"}', "\udcff"],
)
def test_malformed_document_is_refused(text):
    with pytest.raises(ValidationError):
        parse_advice(text)


def test_nan_in_a_document_is_refused(advice):
    text = render_json(advice).replace('"predicted_pct_min": 6.1', '"predicted_pct_min": NaN')
    with pytest.raises(ValidationError, match="predicted_pct_min"):
        parse_advice(text)


@given(text=st.text(st.characters(), max_size=30), number=st.floats() | st.none())
@example(text="half of a pair: \ud800", number=None)
def test_any_text_and_number_survive(advice, text, number):
    finding = dataclasses.replace(advice.findings[0], title=text, saving=Saving(predicted_pct_min=number))
    again = parse_advice(render_json(dataclasses.replace(advice, findings=(finding,)))).findings[0]
    assert again.title == text.encode("utf-8", "backslashreplace").decode()  # what UTF-8 cannot hold is spelt out
    expected = number if number is not None and math.isfinite(number) else None
    assert again.saving.predicted_pct_min == expected
