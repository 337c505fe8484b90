"""Advice with files of runs: a trace and a log of this program's own, exports and traces made by hand."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from mutations import mutated
from ncu_exports import Launch, nvtx_cell, nvtx_export
from ncu_reports import A40, ReportLaunch
from ncu_reports import report as report_of
from run_traces import RunTrace
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

import frx_graph
from frx_graph.advisor.evidence_files import read_run_file
from frx_graph.analyzers.observations.corroboration import BELONGS_TO_NONE
from frx_graph.errors import EvidenceError
from frx_graph.passes.confidence import CONFIRMED, CONTRADICTED
from frx_graph.records import Basis, Finding
from frx_graph.reports.advice.render import AdviceReport

TO_LAST = "void nchwToNhwcKernel<float, float, float, 1, 0, 2>(int)"
SCHEMA = Path(frx_graph.__file__).parent / "reports" / "frx_advice_v1.schema.json"


class Churn(nn.Module):
    """Asks for a copy, and multiplies what its strides do not allow to be folded."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2).contiguous()
        return y.relu().permute(1, 0, 2) @ x[0]


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).relu()


X = torch.randn(8, 64, 64)
IMAGES = torch.randn(4, 16, 24, 24)


def record(path: Path, model: nn.Module, *args: Any, steps: int = 3) -> Path:
    """A trace with shapes and stacks of so many steps of the model."""
    with (
        torch.no_grad(),
        profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=0, warmup=1, active=steps),
            record_shapes=True,
            with_stack=True,
            on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        ) as profiler,
    ):
        for _ in range(steps + 1):
            model(*args)
            profiler.step()
    return path


def advise(model: nn.Module, *args: Any, evidence: Any = (), **options: Any) -> AdviceReport:
    with torch.no_grad():
        return frx_graph.advise(model.eval(), args, evidence=evidence, **options)


def of_rule(report: AdviceReport, rule: str) -> list[Finding]:
    """A graph's id is another one in each capture."""
    return [replace(finding, graph_id="") for finding in report.findings if finding.rule == rule]


def observed(finding: Finding, source: str) -> list[str]:
    """What a file has shown of a finding."""
    return [fact.text for fact in finding.evidence if source in fact.source and fact.basis is Basis.OBSERVED]


@pytest.fixture(scope="module")
def churn_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("traces") / "churn.json.gz", Churn().eval(), X)


def test_a_trace_of_the_program_confirms_its_copies(churn_trace: Path) -> None:
    before, after = advise(Churn(), X), advise(Churn(), X, evidence=[churn_trace, str(churn_trace)])
    (asked,), (was,) = of_rule(after, "FRX002"), of_rule(before, "FRX002")
    assert (was.confidence < CONFIRMED, asked.confidence) == (True, CONFIRMED)
    seen, counted = observed(asked, "churn.json.gz")
    assert seen.startswith("copy seen: aten::contiguous of (8, 64, 64), 1× a step, ")
    assert re.search(r" [mu]s, 262 kB$", seen), "on a busy machine it takes a millisecond"
    assert counted == "seen 1× a step, predicted 1×"
    assert len(after.findings) == len(before.findings)


def test_the_json_has_the_numbers_with_their_place(churn_trace: Path) -> None:
    document = json.loads(advise(Churn(), X, evidence=[churn_trace]).render("json"))
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    facts = [
        measured
        for finding in document["findings"]
        for fact in finding["evidence"]
        for measured in fact["measurements"]
        if finding["rule"] == "FRX002"
    ]
    assert [(fact["metric"], fact["unit"]) for fact in facts] == [
        ("copies_per_step", "count"),
        ("time_per_step", "s"),
        ("traffic_per_step", "byte"),
    ]
    assert facts[2]["value"] == 2 * 4 * X.numel()
    assert facts[0]["provenance"]["source"] == str(churn_trace)
    assert facts[0]["provenance"]["line"] is None


@pytest.mark.parametrize("format", ["text", "md", "html", "sarif"])
def test_every_report_shows_it(churn_trace: Path, format: str) -> None:
    assert "copy seen: aten::contiguous" in " ".join(advise(Churn(), X, evidence=[churn_trace]).render(format).split())


def test_a_trace_of_other_shapes_confirms_nothing(tmp_path: Path) -> None:
    path = record(tmp_path / "other.json", Churn().eval(), torch.randn(4, 32, 64))
    before, after = advise(Churn(), X), advise(Churn(), X, evidence=[path])
    assert of_rule(after, "FRX002") == of_rule(before, "FRX002") != []
    left = [refusal for refusal in after.refusals if refusal.reason.startswith(BELONGS_TO_NONE)]
    assert left
    assert any("aten::contiguous in" in refusal.subject for refusal in left)


def test_a_trace_of_another_program_confirms_nothing(tmp_path: Path) -> None:
    path = record(tmp_path / "other.json", nn.Linear(8, 8).eval(), torch.randn(3, 8))
    after = advise(Churn(), X, evidence=[path])
    assert of_rule(after, "FRX002") == of_rule(advise(Churn(), X), "FRX002") != []


CONV = ([4, 16, 24, 24], [9216, 576, 24, 1]), ([32, 16, 3, 3], [144, 9, 3, 1]), ([32], [1])


def gpu_trace(path: Path, *, converts: bool) -> Path:
    trace = RunTrace()
    for number in range(2):
        start = 1000 * number
        trace.step(number, start, start + 990)
        trace.op("aten::convolution", start + 1, start + 90, *CONV)
        trace.op("aten::cudnn_convolution", start + 2, start + 80, *CONV[:2])
        if converts:
            trace.kernel(TO_LAST, start + 3, start + 200, start + 220)
            trace.kernel(TO_LAST, start + 4, start + 220, start + 222)
        trace.kernel("volta_sgemm_64x64_nt", start + 5, start + 230, start + 300)
    return trace.write(path)


def test_kernels_of_another_device_are_marked_as_such(tmp_path: Path) -> None:
    """On a processor whose oneDNN converts nothing there is no finding that they could belong to, which is said."""
    report = advise(Images(), IMAGES, evidence=[gpu_trace(tmp_path / "gpu.json", converts=True)])
    told = [text for finding in report.findings for text in observed(finding, "gpu.json") if "seen:" in text]
    left = [refusal for refusal in report.refusals if "nchwToNhwcKernel" in refusal.subject]
    assert len(told) + len(left) == 2
    assert all(text.endswith("in another setting than advised on (cuda, not compiled)") for text in told)
    assert all(finding.confidence < CONFIRMED for finding in report.findings if observed(finding, "gpu.json"))


CALLED = "aten::convolution, seq = 1, sizes = [[4, 16, 24, 24], [32, 16, 3, 3], [32], [], []]"
ELSEWHERE = "aten::convolution, seq = 1, sizes = [[1, 1, 4, 4], [1, 1, 3, 3], [], [], []]"


def test_a_binary_report_leads_back_like_its_export(tmp_path: Path) -> None:
    pytest.importorskip("ncu_report")
    export, binary = tmp_path / "report.csv", tmp_path / "report.ncu-rep"
    export.write_text(
        nvtx_export([(Launch(0, TO_LAST), nvtx_cell(CALLED)), (Launch(1, TO_LAST), nvtx_cell(ELSEWHERE))])
    )
    values = {**A40, "gpu__time_duration.sum": 6750.0}
    binary.write_bytes(report_of(*(ReportLaunch(TO_LAST, values, pushed=(name,)) for name in (CALLED, ELSEWHERE))))
    one, other = (read_run_file(path).observations for path in (export, binary))
    assert [(seen.work, seen.calls, seen.phase, seen.count) for seen in one] == [
        (seen.work, seen.calls, seen.phase, seen.count) for seen in other
    ]
    assert len(one) == 2


def test_an_export_with_ranges_leads_back_and_names_what_does_not(tmp_path: Path) -> None:
    conv, other = nvtx_cell(CALLED), nvtx_cell(ELSEWHERE)
    path = tmp_path / "report.csv"
    path.write_text(nvtx_export([(Launch(0, TO_LAST), conv), (Launch(1, TO_LAST), other)]))
    report = advise(Images(), IMAGES, evidence=[path])
    left = [refusal for refusal in report.refusals if "report.csv" in refusal.subject]
    assert any("on operands of these shapes" in r.reason or "no finding covers" in r.reason for r in left)
    assert len(left) + sum(bool(observed(finding, "report.csv")) for finding in report.findings) == 2


def test_a_file_is_read_once_however_its_path_is_spelled(tmp_path: Path) -> None:
    trace = gpu_trace(tmp_path / "gpu.json", converts=True)
    link = tmp_path / "link.json"
    link.symlink_to(trace)
    read: list[str] = []
    detour = tmp_path / ".." / tmp_path.name / trace.name
    evidence = [trace, str(detour), link]
    advise(Images(), IMAGES, measure=False, evidence=evidence, progress=read.append)
    assert [stage for stage in read if stage.startswith("reading")] == [f"reading {trace}"]


@pytest.mark.parametrize("content", [b"", b"hello"])
def test_error_names_the_supported_evidence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(EvidenceError, match="oneDNN verbose log, or code that Inductor has written") as refused:
        read_run_file(path)
    assert "PTX" not in str(refused.value)


ONEDNN_RUN = """
import torch
from torch import nn
torch.manual_seed(0)
conv = nn.Conv2d(16, 32, 3, padding=1).eval()
with torch.no_grad():
    for _ in range(2):
        conv(torch.randn(4, 16, 24, 24)).relu()
"""


def run_with(variables: dict[str, str], program: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def onednn_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "run.log"
    path.write_text(run_with({"ONEDNN_VERBOSE": "1"}, ONEDNN_RUN))
    return path


@pytest.mark.integration
def test_the_log_of_a_run_confirms_what_onednn_converts(onednn_log: Path) -> None:
    text = onednn_log.read_text()
    if ",reorder," not in text:
        pytest.skip("oneDNN converts nothing for this convolution on this processor")
    report = advise(Images(), IMAGES, evidence=[onednn_log])
    owners = [finding for finding in report.findings if finding.rule in ("FRX001", "FRX007")]
    assert owners
    assert all(finding.confidence == CONFIRMED for finding in owners)
    fact = next(fact for fact in owners[0].evidence if "run.log" in fact.source and fact.measurements)
    line = fact.measurements[0].provenance.line
    assert line is not None
    assert ",reorder," in text.splitlines()[line - 1]


def test_log_without_reorders_contradicts_the_findings(onednn_log: Path, tmp_path: Path) -> None:
    """A run in which the convolution took plain operands as they are."""
    if ",reorder," not in onednn_log.read_text():
        pytest.skip("oneDNN converts nothing for this convolution on this processor")
    line = (
        "onednn_verbose,v1,primitive,exec,cpu,convolution,ref,forward_inference,src:f32::blocked:abcd::f0 "
        "wei:f32::blocked:abcd::f0 bia:f32::blocked:a::f0 dst:f32::blocked:abcd::f0,,alg:convolution_direct,"
        "mb4_ic16oc32_ih24oh24kh3sh1dh0ph1_iw24ow24kw3sw1dw0pw1,0.5"
    )
    path = tmp_path / "quiet.log"
    path.write_text(f"{line}\n")
    before, after = advise(Images(), IMAGES), advise(Images(), IMAGES, evidence=[path])
    owners = [*of_rule(after, "FRX001"), *of_rule(after, "FRX007")]
    assert len(owners) == len([*of_rule(before, "FRX001"), *of_rule(before, "FRX007")]) > 0
    for finding in owners:
        assert finding.confidence == CONTRADICTED
        (text,) = observed(finding, "quiet.log")
        assert text == "not seen: aten::convolution ran 1× without it on these shapes and strides"


INDUCTOR_RUN = """
import torch
def program(x):
    return torch.mm(x.transpose(0, 1).contiguous(), x)
with torch.no_grad():
    torch.compile(program)(torch.randn(64, 48))
"""


def program(x: Tensor) -> Tensor:
    return torch.mm(x.transpose(0, 1).contiguous(), x)


@pytest.mark.integration
def test_code_of_inductors_confirms_what_it_has_left(tmp_path: Path) -> None:
    path = tmp_path / "code.txt"
    path.write_text(run_with({"TORCH_LOGS": "output_code", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}, INDUCTOR_RUN))
    with torch.no_grad():
        report = frx_graph.advise(program, (torch.randn(64, 48),), inner="inductor", evidence=[path])
    seen = read_run_file(path).observations
    told = [text for finding in report.findings for text in observed(finding, "code.txt") if "seen:" in text]
    left = [refusal for refusal in report.refusals if "code.txt" in refusal.subject]
    assert len(told) + len(left) == len(seen)
    assert read_run_file(path).setting.compiled


HOSTILE = "\x1b[31m<script>alert(1)</script>[red]nchwToNhwcKernel\u202e"


@pytest.mark.parametrize("format", ["text", "md", "html", "json", "sarif", "github"])
def test_hostile_names_stay_text(tmp_path: Path, format: str) -> None:
    trace = RunTrace()
    trace.op("aten::convolution", 0, 90, *CONV)
    trace.kernel(HOSTILE, 5, 100, 110)
    trace.kernel(TO_LAST + HOSTILE, 6, 110, 120)
    text = advise(Images(), IMAGES, evidence=[trace.write(tmp_path / "gpu.json")]).render(format)
    assert "<script>alert" not in text or format not in ("md", "html")
    assert "\x1b" not in text
    assert "\u202e" not in text


def write(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "missing.json", "no such file"),
        (lambda folder: folder, "is a directory"),
        (write("empty.json", b""), "is empty"),
        (
            write("kernel.ptx", b".version 8.0\n.target sm_90\n"),
            "does not describe a program that ran; expected a torch.profiler",
        ),
        (write("cut.json", b'{"traceEvents": [{"ph": "X"'), "truncated"),
        (write("cut.csv", b'"ID","Kernel Name"\n"0'), "a quotation mark that is not closed"),
        (write("notes.txt", b"hello"), "neither its name nor its content tells what it is"),
    ],
)
def test_unreadable_evidence_is_an_error_before_the_model_runs(
    tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    def never(x: Tensor) -> Tensor:
        raise AssertionError("ran")

    with pytest.raises(EvidenceError, match=message):
        frx_graph.advise(never, (X,), evidence=[make(tmp_path)])


def whole_files(folder: Path) -> dict[str, bytes]:
    """One of each kind that is read."""
    conv = nvtx_cell("aten::convolution, seq = 1, sizes = [[4, 16, 24, 24], [32, 16, 3, 3], [32], [], []]")
    return {
        "trace": gpu_trace(folder / "gpu.json", converts=True).read_bytes(),
        "export": nvtx_export([(Launch(0, TO_LAST), conv), (Launch(1, TO_LAST), "")]).encode(),
        "log": (Path(__file__).parents[1] / "data" / "onednn" / "onednn-3.12.0.log").read_bytes(),
        "code": b"import torch._inductor\nx = async_compile.cpp_pybinding()\n    def call(self, args):\n"
        b"        buf0 = empty_strided_cpu((4, 16, 24, 24), (9216, 1, 384, 16), torch.float32)\n"
        b"        cpp_fused_clone_0(arg0_1, buf0)\n",
    }


@pytest.mark.parametrize("kind", [pytest.param("trace", marks=pytest.mark.integration), "export", "log", "code"])
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    whole = whole_files(tmp_path)[kind]
    path = tmp_path / kind
    path.write_bytes(whole)
    assert read_run_file(path).observations
    chance = random.Random(1)
    refused = 0
    for _ in range(200):
        path.write_bytes(mutated([whole], (b"(", b")", b"none", b"[[", b"src:f32"), chance))
        try:
            read_run_file(path)
        except EvidenceError as error:
            refused += 1
            assert len(str(error).splitlines()) == 1
    assert refused < 200
