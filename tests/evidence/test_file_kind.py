"""What a file is, by what stands in it, whatever else was printed before."""

from __future__ import annotations

from pathlib import Path

import pytest
from ncu_exports import SOL, Launch, long_export, metric

from frx_graph.errors import EvidenceError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind

TABLE = long_export(metric(Launch(), SOL, "Duration", "us", "1.00"))
SOURCE = "__global__ void k() {}\n"
PTX = ".version 8.0\n.target sm_80\n"


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a", TABLE, FileKind.NCU_CSV),
        ("a.csv", "[Vector addition of 50000 elements]\n" + TABLE, FileKind.NCU_CSV),
        ("a", "[Vector addition of 50000 elements]\n" + TABLE, FileKind.NCU_CSV),
        ("a", '{"step": 1}\n{"step": 2}\n' + TABLE, FileKind.NCU_CSV),
        ("a.json", '[{"loss": 1}]\n==PROF== Connected\n' + TABLE, FileKind.NCU_CSV),
        ("a.csv", '{"traceEvents": []}', FileKind.TRACE),
        ("a", ' [ {"ph": "X"}]', FileKind.TRACE),
        ("a", "[", FileKind.TRACE),
        ("a.json", "{no json}", FileKind.TRACE),
        ("a", PTX, FileKind.PTX),
        ("a.cu", f'{SOURCE}const char* text = R"(\n{PTX})";\n', FileKind.CUDA),
        ("a.txt", SOURCE, FileKind.CUDA),
        ("a.csv", "[1, 2]\n", FileKind.NCU_CSV),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_file_kind_is_detected(tmp_path: Path, name: str, content: str, kind: FileKind, encoding: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding=encoding)
    assert detect_file_kind(path) is kind


@pytest.mark.parametrize("content", ["[1, 2]\n", "{no json}", "hello"])
def test_unknown_file_kind_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a"
    path.write_text(content)
    with pytest.raises(EvidenceError, match="neither its name nor its content"):
        detect_file_kind(path)
