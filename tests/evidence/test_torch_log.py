"""The log that torch writes to TORCH_TRACE: a real one, and damaged ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from frx_graph.analyze.compiler_logs import analyze_torch_log
from frx_graph.cli.main import run
from frx_graph.errors import EvidenceError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.evidence.torch_log import read_torch_log
from frx_graph.reports.advice.text import render_text

PREFIX = "V1129 12:00:00.123456 4711 torch/_dynamo/guards.py:42] "
PROGRAM = """
import torch

def step(x, flag):
    return (x * 2).relu() if flag else x + 1

compiled = torch.compile(step, backend="eager")
plain = torch.randn(2, 3, 4, 5)
compiled(plain, True)
compiled(plain.to(memory_format=torch.channels_last), True)
for size in (7, 9):
    compiled(torch.randn(2, 3, 4, size), True)
for flag in (0, 2, 3, 4):
    compiled(plain, flag)
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch_trace")
    (folder / "program.py").write_text(PROGRAM)
    subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, "TORCH_TRACE": str(folder)},
        check=True,
        timeout=120,
        capture_output=True,
    )
    (found,) = folder.glob("*.log")
    return found


def record(fields: str, payload: str = "") -> str:
    return f"{PREFIX}{fields}\n" + "".join(f"\t{line}\n" for line in payload.splitlines())


def written(folder: Path, text: str) -> Path:
    path = folder / "dedicated_log_torch_trace_1.log"
    path.write_text(text)
    return path


def test_a_real_log(log: Path) -> None:
    assert detect_file_kind(log) is FileKind.TORCH_LOG
    found = read_torch_log(log)
    assert found.unreadable == 0
    assert [one.version for one in found.compilations] == list(range(len(found.compilations)))
    first, *again = found.compilations
    assert (first.function, Path(first.file).name, first.line) == ("step", "program.py", 4)
    assert first.reason == ""
    assert all(one.reason for one in again)


def test_what_it_shows(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    advice = analyze_torch_log(log)
    assert {finding.rule for finding in advice.findings} == {"FRX006", "FRX014"}
    strides = next(finding for finding in advice.findings if finding.rule == "FRX006")
    assert "The strides of `x` changed" in strides.title
    assert run(["analyze", str(log)]) == 1
    said = capsys.readouterr().out
    assert "FRX014" in said
    assert "program.py:4" in said
    assert run(["analyze", str(log), "--json", "--exit-zero"]) == 0


def test_reasons_that_are_logged_beside_the_metrics(tmp_path: Path) -> None:
    ids = '"frame_id": 3, "frame_compile_id": 1'
    text = record(f'{{"artifact": {{"name": "recompile_reasons"}}, {ids}}}', "\"L['n'] == 3\"")
    text += record(f'{{"compilation_metrics": {{"co_name": "f"}}, {ids}}}')
    (one,) = read_torch_log(written(tmp_path, text)).compilations
    assert one.reason == "L['n'] == 3"
    assert (one.frame, one.version, one.file, one.line, one.operators) == (3, 1, "", 0, None)


def test_frames_of_two_processes_are_two(tmp_path: Path) -> None:
    metrics = '"recompile_reason": "n == 3", "co_name": "f"'
    text = "".join(
        record(f'{{"compilation_metrics": {{{metrics}}}, "frame_id": 0, "frame_compile_id": 1}}').replace(" 4711 ", pid)
        for pid in (" 1 ", " 2 ", " 3 ")
    )
    advice = analyze_torch_log(written(tmp_path, text))
    assert [one.graph_id for one in advice.graphs] == ["process 1, 0/0", "process 2, 0/0", "process 3, 0/0"]
    assert advice.findings == ()


def test_what_a_log_does_not_tell_is_unknown(tmp_path: Path) -> None:
    metrics = "".join(
        record(
            f'{{"compilation_metrics": {{"recompile_reason": "n == {n}", "co_name": "f"}}, "frame_id": 0, '
            f'"frame_compile_id": {n}}}'
        )
        for n in range(5)
    )
    advice = analyze_torch_log(written(tmp_path, metrics))
    assert (advice.totals.copies_per_step, advice.environment.inner) == (None, "unknown")
    assert [one.count_per_step for one in advice.findings] == [None]
    assert "5 compilations of 1 frame, their times unknown" in [one.reason for one in advice.refusals]
    text = render_text(advice, top=5, width=80, color=False, root=tmp_path)
    assert "Layout copies are unknown." in text
    assert "1 finding: 1 at 1 place. 0 quick wins (one-line fix, low or medium risk)." in " ".join(text.split())


@pytest.mark.parametrize(
    "fields",
    [
        '{"compilation_metrics": 3, "frame_id": 1}',
        '{"compilation_metrics": {"co_name": 7, "co_firstlineno": -1, "graph_op_count": 1e9}}',
        '{"compilation_metrics": {"is_forward": false}, "frame_id": 1}',
        '{"artifact": [], "frame_id": "x"}',
        '{"frame_id": 99999999999999999999999}',
        "[1, 2]",
    ],
)
def test_unusual_records_are_passed_over(tmp_path: Path, fields: str) -> None:
    text = record(fields if fields.startswith("{") else '{"a": 1}')
    assert read_torch_log(written(tmp_path, text)).compilations == ()


def test_damage_is_counted(tmp_path: Path) -> None:
    found = read_torch_log(written(tmp_path, record('{"a": 1}') + record('{"torn') + "\tpayload\nnoise\n"))
    assert found.unreadable == 1
    assert ("log", "1 record could not be read") in [
        (one.subject, one.reason) for one in analyze_torch_log(found.source).refusals
    ]
    with pytest.raises(EvidenceError, match="holds no record"):
        read_torch_log(written(tmp_path, "hello\n"))
