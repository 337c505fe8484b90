"""What a trace tells of a run, as JSON and for people."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from frx_graph.analyze.trace import analyze_run
from frx_graph.analyze.trace_advice import analyze_trace
from frx_graph.reports.advice.fingerprint import compute_fingerprints
from frx_graph.reports.render.document import to_json
from frx_graph.reports.runs.trace_document import TraceDocument, build_trace_document
from frx_graph.reports.runs.trace_report import render_trace

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_trace_v1.schema.json").read_text(encoding="utf-8")
TRACES = Path(__file__).parents[2] / "data" / "traces"
RESNET = TRACES / "kineto_resnet50_two_steps.pt.trace.json.gz"
FILES = sorted(TRACES.glob("*.json.gz"))
HOSTILE = "\x1b[31m\u202e=cmd|'[red]<b>\n" + "x" * 3000


def document(path: Path) -> TraceDocument:
    evidence = analyze_run(path)
    return build_trace_document(evidence.trace, evidence.run, evidence.findings, Path("/"))


def hostile(folder: Path) -> Path:
    where = {"pid": HOSTILE, "tid": HOSTILE}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": HOSTILE, "ts": 0, "dur": 9, **where},
        {"ph": "X", "cat": "cpu_op", "name": f"aten::{HOSTILE}", "ts": 0, "dur": 9, **where},
        {"ph": "X", "cat": "cuda_runtime", "name": HOSTILE, "ts": 1, "dur": 90, "args": {"correlation": 1}, **where},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": 2, "dur": 6, **where},
    ]
    for kind in ("kernel", "gpu_memcpy"):
        args = {"correlation": 1, "device": 0, "stream": HOSTILE}
        events.append({"ph": "X", "cat": kind, "name": HOSTILE, "ts": 20, "dur": 9, "args": args, **where})
    events.append({**events[-1], "args": {**events[-1]["args"], "stream": 2}})
    path = folder / ("long" * 40 + ".json")
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": HOSTILE}], "traceEvents": events}))
    return path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[:12])
def test_document_matches_the_published_schema(path: Path) -> None:
    published = json.loads(PUBLISHED)
    jsonschema.Draft202012Validator.check_schema(published)
    found = document(path)
    text = json.dumps(to_json(found), allow_nan=False)
    jsonschema.Draft202012Validator(published).validate(json.loads(text))
    assert TraceDocument.model_validate_json(text) == found


def test_host_layout_findings_are_mentioned() -> None:
    attention = document(TRACES / "attention_block_torch215.json.gz").result
    explained = analyze_trace(TRACES / "attention_block_torch215.json.gz", None).findings
    assert (len(attention.layout), attention.layout_findings) == (0, len(explained))
    text = " ".join(render_trace(attention, top=1, width=80, color=False).split())
    assert f"{len(explained)} findings on copies that take no device time here: `frx analyze --trace`" in text
    resnet = document(RESNET).result
    assert resnet.layout
    assert "findings: `frx analyze --trace` explains them." in " ".join(
        render_trace(resnet, top=1, width=80, color=False).split()
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[:12])
def test_reports_fit_a_terminal(path: Path) -> None:
    text = render_trace(document(path).result, top=5, width=80, color=False)
    assert max(map(len, text.splitlines())) <= 80
    assert "RUN VERDICT" in text
    assert "LABELS" in text


def test_resnet50() -> None:
    result = to_json(document(RESNET))["result"]
    assert [step["number"] for step in result["window"]["steps"]] == [5, 6]
    assert result["attribution"]["attributed_share"] == 1.0
    (device,) = result["devices"]
    assert device["name"] == "Tesla V100-DGXS-32GB"
    assert device["busy_share"] + device["idle_share"] == pytest.approx(1)
    assert {row["family"] for row in result["families"]} >= {"convolution", "layout_conversion", "normalization"}
    convolution = next(row for row in result["operators"] if row["outer"] == "aten::conv2d")
    assert convolution["site"]["file"].endswith("resnet.py")


def test_layout_work_points_to_the_finding_that_advice_gives() -> None:
    result = document(RESNET).result
    advice = analyze_trace(RESNET)
    known = dict(zip(compute_fingerprints(advice.findings, Path("/")), advice.findings, strict=True))
    assert {work.rule for work in result.layout} == {"FRX004", "FRX007"}
    for work in result.layout:
        finding = known[work.fingerprint]
        assert (finding.rule, finding.title, finding.fix) == (work.rule, work.title, work.fix)
        assert work.bytes is not None
        assert work.bytes == 2 * (finding.bytes_per_step or 0)


def test_nothing_that_is_not_known_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps([{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}])
    )
    result = to_json(document(path))["result"]
    assert (result["devices"], result["launches"], result["layout_share"]) == ([], None, None)
    host = result["host"]
    assert [host[name] for name in ("dataloader_wait_ms", "sync_wait_ms", "allocation_ms")] == [None, None, None]
    assert result["attribution"]["attributed_share"] is None
    assert result["primary_bottleneck"] is None
    text = render_trace(document(path).result, top=5, width=80, color=False)
    assert "Primary bottleneck: unknown, since devices were not recorded" in " ".join(text.split())
    assert "not decidable" in text
    assert "2.00 µs 100.0 %       1× aten::mm" in text
    assert text.endswith("frx advise file.py:callable\n")


def test_hostile_names_are_harmless(tmp_path: Path) -> None:
    result = document(hostile(tmp_path)).result
    for color in (False, True):
        text = render_trace(result, top=9, width=80, color=color)
        assert "\u202e" not in text
        assert "\x1b[31m=" not in text
        assert "[red]" in text
    plain = render_trace(result, top=9, width=80, color=False)
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 80
