"""The page of each kind of result: what is in it, and that nothing that a file holds runs in a browser."""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from frx_graph.service.analysis import run_analysis
from frx_graph.service.analysis_job import AnalysisJob, JobFile, Task
from frx_graph.service.html_report import render_result

DATA = Path(__file__).parents[1] / "data"
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"
QUOTED = "\"'><svg onload=alert(1)>\u202e\x1b[31m"
VOID = {"meta", "link", "input", "br", "wbr", "img"}
URL_ATTRIBUTES = {"href", "src", "action", "xlink:href", "formaction", "data", "poster"}


class Page(HTMLParser):
    """What a browser makes of it."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.source = source
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert name != "style", (tag, value)
            if name in URL_ATTRIBUTES:
                assert re.match(r"/(?!/)|#|https://", value or ""), value
        if tag == "script":
            assert dict(attrs) == {"src": "/static/service.js", "defer": None}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def page_of(folder: Path, monkeypatch, task: Task = Task.FILE, labels=("a", "b"), **files: bytes) -> Page:
    monkeypatch.chdir(folder)
    sides = ("a", "b") if task is Task.COMPARE else (None, None)
    names = []
    for (name, content), side in zip(files.items(), sides, strict=False):
        path = name.replace("__", ".")
        (folder / path).write_bytes(content)
        names.append(JobFile(name=path, side=side))
    job = AnalysisJob(task=task, folder=str(folder), files=tuple(names), labels=labels)
    page = Page(render_result(run_analysis(job)))
    assert page.tags.count("script") == 1
    assert page.tags.count("h1") == 1
    assert "img" not in page.tags
    assert "\x1b" not in page.source
    assert "\u202e" not in page.source
    return page


def trace(name: str) -> bytes:
    file = "C:/" + name + ".py(7): forward"
    events = [
        {"ph": "X", "cat": "python_function", "name": file, "pid": 1, "tid": 1, "ts": 0, "dur": 99, "args": {}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::contiguous", "pid": 1, "tid": 1, "ts": 1, "dur": 60,
         "args": {"Input Dims": [[8, 8]], "Input type": ["float"]}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::copy_" , "pid": 1, "tid": 1, "ts": 2, "dur": 50,
         "args": {"Input Dims": [[8, 8], [8, 8]], "Input type": ["float", "float"]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 5, "dur": 5,
         "args": {"correlation": 1}},
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 20, "dur": 30,
         "args": {"correlation": 1, "device": 0, "stream": 7}},
    ]  # fmt: skip
    devices = [{"id": 0, "name": name}]
    return json.dumps({"deviceProperties": devices, "traceEvents": events}).encode()


def ncu(name: str) -> bytes:
    quoted = '"' + name.replace('"', '""').replace("\n", " ") + '"'
    rows = [
        ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", "91.5"),
        ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "20"),
        ("gpu__time_duration.sum", "ns", "51200"),
        ("dram__bytes.sum", "byte", "40000000"),
        ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", "1000000"),
    ]
    head = '"ID","Kernel Name","Device","CC","Metric Name","Metric Unit","Metric Value"\n'
    return (head + "".join(f'"0",{quoted},"0","9.0","{m}","{u}","{v}"\n' for m, u, v in rows)).encode()


@pytest.mark.parametrize("name", [SCRIPT, QUOTED])
def test_names_in_a_trace(tmp_path, monkeypatch, name):
    page = page_of(tmp_path, monkeypatch, trace__json=trace(name))
    assert "alert(1)" in page.words
    assert "Copies and conversions of layouts" in page.words
    assert "Kernels" in page.words


@pytest.mark.parametrize("name", [SCRIPT, QUOTED])
def test_names_in_an_export(tmp_path, monkeypatch, name):
    page = page_of(tmp_path, monkeypatch, report__csv=ncu(name))
    assert "alert(1)" in page.words
    assert "Memory bandwidth saturated" in page.words
    assert "DRAM at 91.5 %" in page.words


def test_names_in_ptx_and_in_source(tmp_path, monkeypatch):
    ptx = (DATA / "ptx" / "kernels_sm80.ptx").read_bytes()
    page = page_of(tmp_path, monkeypatch, k__ptx=ptx)
    assert "Virtual registers" in page.words
    source = (DATA / "cuda" / "uncoalesced_access_bad.cu").read_text()
    hostile = source.replace("threadIdx.x", "threadIdx.x /* </code><script>alert(1)</script> */")
    page = page_of(tmp_path, monkeypatch, k__cu=hostile.encode())
    assert "uncoalesced_access" in page.words
    assert "Launches" in page.words


def test_two_files_and_what_they_are_called(tmp_path, monkeypatch):
    bad, good = ((DATA / "cuda" / f"uncoalesced_access_{word}.cu").read_bytes() for word in ("bad", "good"))
    page = page_of(tmp_path, monkeypatch, Task.COMPARE, (SCRIPT, QUOTED), a__cu=bad, b__cu=good)
    assert "Resolved in B" in page.words
    assert "B is better" in page.words
    assert page.words.count("alert(1)") >= 4


def test_names_in_a_run(tmp_path, monkeypatch):
    lines = []
    for step in range(12):
        at = 10**9 + step * 10**7
        lines.append({"event_type": "step_start", "timestamp_ns": at, "step_id": step, "payload": {"kind": SCRIPT}})
        lines.append(
            {"event_type": "step_end", "timestamp_ns": at + 9 * 10**6, "step_id": step, "duration_ns": 9 * 10**6,
             "payload": {"kind": SCRIPT, QUOTED: 1.0}}
        )  # fmt: skip
    lines.append({"event_type": "warning", "timestamp_ns": 1, "payload": {"message": SCRIPT}})
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr("<run>/raw/trace.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    page = page_of(tmp_path, monkeypatch, run__zip=archive.getvalue())
    assert "Where a step's time goes" in page.words
    assert "<run>" in page.words


def test_advice_and_hostile_advice(advice, hostile_advice):
    page = Page(render_result(advice))
    for words in ("Findings, best first", "Where the copies are", "Roofline", "Left alone", "Environment"):
        assert words in page.words
    page = Page(render_result(hostile_advice))
    assert page.tags.count("script") == 1
    assert "alert(1)" in page.words
    assert "\x1b" not in page.source


def test_the_traces_of_real_programs_have_a_page(tmp_path, monkeypatch):
    for path in sorted((DATA / "traces").glob("*.json.gz")):
        page = page_of(tmp_path, monkeypatch, t__json=gzip.decompress(path.read_bytes()))
        assert "What was looked for" in page.words
