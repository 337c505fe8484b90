"""Each endpoint as a client sees it, on a real service."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import jsonschema
import pytest

from frx_graph.reports.advice.advice_file import render_json

DATA = Path(__file__).parents[1] / "data"
SCHEMAS = Path(__file__).parents[2] / "frx_graph" / "reports"
BAD = (DATA / "cuda" / "uncoalesced_access_bad.cu").read_text()
GOOD = (DATA / "cuda" / "uncoalesced_access_good.cu").read_text()
PTX = (DATA / "ptx" / "kernels_sm80.ptx").read_text()
_ROW = '"0","1","app","127.0.0.1","saxpy(int)","1","7","(256, 1, 1)","(64, 1, 1)","0","8.0","Command line profiler"'
NCU = f"""\
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"Section Name","Metric Name","Metric Unit","Metric Value"
{_ROW},"dram__throughput.avg.pct_of_peak_sustained_elapsed","%","91.5"
{_ROW},"gpu__time_duration.sum","ns","5120"
"""
TRACE = json.dumps(
    {
        "traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 0, "dur": 50, "args": {}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 5, "dur": 5,
             "args": {"correlation": 1}},
            {"ph": "X", "cat": "kernel", "name": "add", "pid": 0, "tid": 7, "ts": 20, "dur": 30,
             "args": {"correlation": 1, "device": 0, "stream": 7}},
        ]
    }
)  # fmt: skip


def without_mode(document: dict, schema: str) -> None:
    """The result alone is what the schema's `result` describes."""
    published = json.loads((SCHEMAS / f"{schema}.schema.json").read_text())
    name = published["properties"]["result"]["$ref"].rpartition("/")[2]
    jsonschema.validate(document, {**published["$defs"][name], "$defs": published["$defs"]})


def test_the_name_of_a_file_does_not_make_it_another_kind(client):
    layers = {"static": {"files": [{"content": BAD, "filename": "ncu.csv"}]}, "ncu": {"csv_text": NCU}}
    answer = client.post("/reconcile", json=layers)
    assert answer.status_code == 200, answer.text


def test_health_endpoint_answers_head_requests(client):
    assert client.head("/healthz").status_code == 200


def test_a_field_that_is_too_long(client):
    answer = client.post("/analyze", files={"file": ("a.cu", BAD)}, data={"gpu_model": "x" * 5000})
    assert answer.status_code == 400
    assert "1KB" in answer.json()["detail"]


def test_source_is_inspected(client):
    body = {"files": [{"filename": "bad.cu", "content": BAD}, {"content": GOOD}], "gpu_model": "NVIDIA H100"}
    answer = client.post("/cuda/static-inspect", json=body)
    assert answer.status_code == 200
    found = answer.json()
    assert [file["filename"] for file in found["files"]] == ["bad.cu", "kernel.cu"]
    assert {"kernels", "launch_configs", "indexing_patterns", "memory_tags", "atomics", "shared_memory_warnings",
            "launch_advice", "occupancy"} <= found.keys()  # fmt: skip
    assert {(finding["filename"], finding["rule"]) for finding in found["findings"]} == {
        ("bad.cu", "uncoalesced_access")
    }
    assert found["gpu_model"] == "H100 SXM"
    assert {"global"} <= {tag["space"] for tag in found["memory_tags"]}


def test_counters_are_read(client):
    answer = client.post("/ncu/analyze", json={"csv_text": NCU})
    assert answer.status_code == 200
    assert answer.json()["primary_bottleneck"] == "memory_bandwidth_bound"
    assert answer.json()["kernel_attribution"]["top_opportunities"][0]["kernel_name"] == "saxpy(int)"
    without_mode(answer.json(), "frx_ncu_v1")


def test_ptx_is_read(client):
    answer = client.post("/ptx/analyze", json={"ptx_text": PTX})
    assert answer.status_code == 200
    assert answer.json()["kernel_count"] > 0
    without_mode(answer.json(), "frx_ptx_v1")


def test_two_sides_are_compared(client):
    body = {"a": {"label": "baseline", "cuda_source": BAD}, "b": {"label": "optimized", "cuda_source": GOOD}}
    answer = client.post("/compare", json=body)
    assert answer.status_code == 200
    found = answer.json()
    assert (found["label_a"], found["label_b"]) == ("baseline", "optimized")
    assert "uncoalesced_access" in {finding["code"] for finding in found["resolved"]}
    without_mode(found, "frx_compare_v1")


def test_layers_are_reconciled(client):
    body = {"static": {"files": [{"content": BAD}]}, "ncu": {"csv_text": NCU}, "profiler": {"trace_text": TRACE}}
    answer = client.post("/reconcile", json=body)
    assert answer.status_code == 200
    assert set(answer.json()["layers_available"]) == {"source", "ncu", "profiler"}
    without_mode(answer.json(), "frx_reconcile_v1")


@pytest.mark.parametrize(
    ("name", "content", "mode"),
    [
        ("trace.json", TRACE.encode(), "trace"),
        ("trace.json.gz", gzip.compress(TRACE.encode()), "trace"),
        ("report.csv", NCU.encode(), "ncu"),
        ("k.ptx", PTX.encode(), "ptx"),
        ("k.cu", BAD.encode(), "cuda_source"),
    ],
)
def test_any_file_is_analysed(client, name, content, mode):
    answer = client.post("/analyze", files={"file": (name, content)})
    assert answer.status_code == 200
    assert answer.json()["mode"] == mode
    assert answer.json()["result"]["source"] == name


def test_advice_is_read_again(client, advice):
    text = render_json(advice)
    answer = client.post("/analyze", files={"file": ("advice.json", text.encode())})
    assert answer.status_code == 200
    assert answer.json() == json.loads(text)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/ncu/analyze", {"csv_text": "a,b\n1,2\n"}, "ncu.csv: no row with the columns"),
        ("/ncu/analyze", {"csv_text": NCU, "gpu_model": "no such"}, "no GPU is known"),
        ("/ncu/analyze", {"csv_text": PTX}, "ncu.csv: is ptx, expected ncu"),
        ("/ptx/analyze", {"ptx_text": BAD}, "kernel.ptx: is cuda_source, expected ptx"),
        ("/ptx/analyze", {"ptx_text": ""}, "body.ptx_text"),
        ("/ptx/analyze", {"ptx_text": "\ud800"}, "body"),
        ("/ptx/analyze", {"ptx_text": PTX, "path": "/etc/passwd"}, "body: Value error, there is no field 'path'"),
        ("/ptx/analyze", [], "body"),
        ("/cuda/static-inspect", {"files": []}, "body.files"),
        ("/cuda/static-inspect", {"files": [{"content": PTX}]}, "kernel.cu: is ptx, expected cuda_source"),
        ("/cuda/static-inspect", {"files": [{"content": NCU, "filename": "a.csv"}]}, "a.csv.cu: "),
        ("/compare", {"a": {"cuda_source": PTX}, "b": {"ptx_text": BAD}}, "a.cu: is ptx, expected cuda_source"),
        ("/reconcile", {"profiler": {"trace_text": BAD}}, "trace.json: is cuda_source, expected trace"),
        ("/compare", {"a": {"label": "x"}, "b": {"cuda_source": BAD}}, "one of cuda_source, ptx_text and ncu_csv"),
        ("/reconcile", {}, "one of static, ptx, ncu and profiler"),
    ],
)
def test_unanalysable_input_is_rejected_with_a_reason(client, path, body, said):
    answer = client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in answer.json()["detail"]
    assert answer.json()["status"] == 422
    assert "/tmp" not in answer.text


def test_a_gpu_model_adds_nothing_to_a_trace(client):
    answers = [
        client.post("/reconcile", json={"profiler": {"trace_text": TRACE}, **more})
        for more in ({}, {"gpu_model": "H100"})
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    form = {"files": {"file": ("t.json", TRACE.encode())}}
    answers = [client.post("/analyze", **form), client.post("/analyze", **form, data={"gpu_model": "H100"})]
    assert answers[0].json() == answers[1].json()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"files": {"file": ("notes.txt", b"hello")}}, "neither its name nor its content"),
        ({"files": {"file": ("empty.json", b"")}}, "is empty"),
        ({"files": {"other": ("k.cu", BAD.encode())}}, "unknown or repeated fields"),
        ({"files": [("file", ("a.cu", b"x")), ("file", ("b.cu", b"y"))]}, "unknown or repeated fields"),
        ({"files": {"file": ("k.cu", BAD.encode())}, "data": {"url": "http://example.org"}}, "unknown or repeated"),
        ({"data": {"file": "text"}}, "not a form with a file"),
        ({"json": {"file": "x"}}, "not a form with a file"),
    ],
)
def test_invalid_form_is_rejected_with_a_reason(client, sent, said):
    answer = client.post("/analyze", **sent)
    assert answer.status_code == 422
    assert said in answer.json()["detail"]


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 100_000])
def test_non_json_body_is_refused(client, body):
    answer = client.post("/ptx/analyze", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


def test_missing_resources_return_404(client):
    for path, status in (("/nope", 404), ("/ledger/events/99999", 404), ("/static/../app.py", 404)):
        answer = client.get(path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
    assert client.get("/analyze").status_code == 405


def test_every_response_forbids_foreign_scripts(client):
    for path in ("/", "/nope", "/openapi.json", "/static/service.js", "/healthz"):
        headers = client.get(path).headers
        policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
        assert policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


def test_each_request_is_one_line_of_the_log_without_what_was_sent(service, client):
    client.get("/%1B%0Asecret-path")
    number = client.post("/ptx/analyze", json={"ptx_text": "a secret"}).headers["x-request-id"]
    deadline = time.monotonic() + 30
    while not any(number in line for line in service.log):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (mine,) = [line for line in map(json.loads, service.log) if line.get("request") == number]
    assert (mine["method"], mine["route"], mine["status"]) == ("POST", "/ptx/analyze", 422)
    assert not any("secret" in line for line in service.log)


def test_figures_for_prometheus(client):
    client.get("/healthz")
    text = client.get("/metrics").text
    assert 'frx_http_requests_total{method="GET",route="/healthz",status="200"}' in text
    assert "frx_workers_busy 0.0" in text
    assert client.get("/metrics").headers["content-type"].startswith("text/plain")


def test_the_document_has_examples_and_what_can_go_wrong(client):
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    posts = {path: verbs["post"] for path, verbs in document["paths"].items() if "post" in verbs}
    assert set(posts) == {"/cuda/static-inspect", "/ncu/analyze", "/ptx/analyze", "/compare", "/reconcile", "/analyze"}
    for operation in posts.values():
        assert {"200", "413", "422", "503"} <= operation["responses"].keys()
        assert "application/problem+json" in operation["responses"]["422"]["content"]
    for schema in ("StaticInspectRequest", "NcuRequest", "PtxRequest", "CompareRequest", "ReconcileRequest"):
        assert document["components"]["schemas"][schema]["examples"]
