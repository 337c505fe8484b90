"""Text of a run is known by its content, and what holds nothing is an error with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.errors import EvidenceError
from frx_graph.evidence.run_log import LogKind, detect_log_kind, read_inductor_file, read_onednn_log

LOG = Path(__file__).parent.parent / "data" / "onednn" / "onednn-3.13.3.log"
IMPORTS = "from torch._inductor.async_compile import AsyncCompile\nx = async_compile.cpp_pybinding()\n"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_log_is_known_by_its_content(tmp_path: Path) -> None:
    assert detect_log_kind(write(tmp_path / "a.json", "loss 0.5\n" * 100 + LOG.read_text())) is LogKind.ONEDNN
    assert detect_log_kind(write(tmp_path / "b.csv", IMPORTS)) is LogKind.INDUCTOR

    printed = "[W init.cpp:1] Warning\n" + LOG.read_text()
    assert detect_log_kind(write(tmp_path / "c.log", printed)) is LogKind.ONEDNN
    assert detect_log_kind(write(tmp_path / "d.log", '{"step": 1}\n' + LOG.read_text())) is LogKind.ONEDNN
    assert detect_log_kind(write(tmp_path / "e.py", "[rank0]: compiled\n" + IMPORTS)) is LogKind.INDUCTOR


@pytest.mark.parametrize("content", [b"", b'{"traceEvents": []}', b"import torch", b"\x1f\x8b\x08onednn_verbose,"])
def test_other_files_are_none(tmp_path: Path, content: bytes) -> None:
    assert detect_log_kind(write(tmp_path / "file", content)) is None
    assert detect_log_kind(tmp_path / "missing") is None
    assert detect_log_kind(tmp_path) is None


def test_primitives_have_the_lines_of_the_file(tmp_path: Path) -> None:
    lines = LOG.read_text().splitlines()
    primitives = read_onednn_log(LOG)
    assert len(primitives) == sum(",primitive,exec," in line for line in lines)
    assert all(f",{primitive.kind}," in lines[primitive.line - 1] for primitive in primitives)
    assert all(primitive.seconds is not None and 0 < primitive.seconds < 1 for primitive in primitives)


def test_a_log_without_a_primitive_is_an_error_and_not_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "run.log", "onednn_verbose,v1,info,cpu,runtime:OpenMP\n")
    with pytest.raises(EvidenceError, match=r"run.log: no primitive ran in 1 lines"):
        read_onednn_log(path)


def test_code_without_a_loop_is_an_error_and_not_nothing(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"code.py: no loop of Inductor's is called in 2 lines"):
        read_inductor_file(write(tmp_path / "code.py", IMPORTS))
