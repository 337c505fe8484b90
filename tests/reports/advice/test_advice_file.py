from __future__ import annotations

import json
import math
import re

import pytest

from frx_graph.errors import EvidenceError
from frx_graph.reports.advice.advice_file import is_advice, read_advice, render_json


@pytest.mark.parametrize("name", ["advice", "observed", "empty", "failed"])
def test_written_advice_is_read_back(name, request, tmp_path):
    advice = request.getfixturevalue(name)
    file = tmp_path / "advice.json"
    file.write_text(render_json(advice))
    assert is_advice(file)
    read = read_advice(file)
    assert read == advice
    assert render_json(read) == file.read_text()


def test_hostile_advice_is_as_it_was_written(hostile, tmp_path):
    file = tmp_path / "advice.json"
    file.write_text(render_json(hostile))
    assert render_json(read_advice(file)) == file.read_text()


def test_a_number_that_was_not_finite_is_not_a_number(observed, tmp_path):
    document = json.loads(render_json(observed))
    provenance = {"source": "s", "line": None, "name": "n"}
    measurement = {"metric": "m", "value": None, "unit": "s", "subject": "k", "provenance": provenance}
    fact = {"text": "t", "source": "s", "basis": "observed", "measurements": [measurement]}
    document["findings"][0]["evidence"] = [fact]
    file = tmp_path / "advice.json"
    file.write_text(json.dumps(document))
    (read,) = read_advice(file).findings[0].evidence
    assert math.isnan(read.measurements[0].value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"findings": 3}, "findings"),
        ({"schema": "frx_advice_v2"}, "schema"),
        ({"totals": {}}, "totals.ops_scanned"),
    ],
)
def test_invalid_advice_error_names_the_place(advice, tmp_path, change, said):
    file = tmp_path / "advice.json"
    file.write_text(json.dumps({**json.loads(render_json(advice)), **change}))
    with pytest.raises(EvidenceError, match=f"is not frx_advice_v1: {said}"):
        read_advice(file)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("findings", 0, "confidence"), 2),
        (("findings", 0, "bytes_per_step"), -1),
        (("findings", 0, "site", "line"), 0),
        (("findings", 0, "severity"), "dire"),
        (("copies", 0, "count"), 2**63),
        (("graphs", 0, "roofline", 0, "seconds"), -1.0),
        (("environment", "bandwidth_bytes_per_s"), 1e25),
        (("environment", "peak_flops", 0, "flops_per_s"), 0),
        (("totals", "ops_scanned"), "many"),
    ],
)
def test_out_of_bounds_values_are_refused(advice, tmp_path, path, value):
    document = json.loads(render_json(advice))
    part = document
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    file = tmp_path / "advice.json"
    file.write_text(json.dumps(document))
    with pytest.raises(EvidenceError, match=re.escape(".".join(map(str, path)))):
        read_advice(file)


@pytest.mark.parametrize("content", [b"", b'{"schema": "frx_trace_v1"}', b'["frx_advice_v1"]', b'{"traceEvents": []}'])
def test_other_files_are_none(tmp_path, content):
    file = tmp_path / "x.json"
    file.write_bytes(content)
    assert not is_advice(file)
    assert not is_advice(tmp_path / "missing")
