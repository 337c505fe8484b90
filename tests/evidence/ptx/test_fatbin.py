"""What cuobjdump prints is read like the PTX in it, with the lines of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.analyze.ptx import analyze_ptx
from frx_graph.errors import EvidenceError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.evidence.ptx.parsing import parse_ptx
from frx_graph.evidence.ptx.ptxas import find_ptxas

ELF = "\nFatbin elf code:\n================\narch = sm_80\ncode version = [1,7]\nhost = linux\ncompile_size = 64bit\n"


def part(name: str, target: str = "sm_80") -> str:
    head = (
        f"\nFatbin ptx code:\n================\narch = {target}\ncode version = [8,0]\nhost = linux\ncompressed\n\n\n"
    )
    return f"{head}.version 8.0\n.target {target}\n.address_size 64\n.visible .entry {name}()\n{{\nret;\n}}\n"


def test_the_parts_of_a_program_are_one_module() -> None:
    text = ELF + part("first") + ELF + part("second")
    module = parse_ptx(text, "dump.ptx")
    assert [kernel.name for kernel in module.kernels] == ["first", "second"]
    lines = text.splitlines()
    assert [lines[kernel.line - 1] for kernel in module.kernels] == [
        ".visible .entry first()",
        ".visible .entry second()",
    ]


def test_several_targets_are_refused() -> None:
    with pytest.raises(
        EvidenceError, match=r"PTX for sm_80 and sm_90, expected one target \(cuobjdump -ptx -arch sm_90"
    ):
        parse_ptx(part("k") + part("k", "sm_90"), "dump.ptx")


def test_error_has_the_line_of_the_file() -> None:
    text = ELF + part("k").replace("ret;", "?")
    number = text.splitlines().index("?") + 1
    with pytest.raises(EvidenceError, match=rf"dump\.ptx: line {number}: no PTX statement"):
        parse_ptx(text, "dump.ptx")


def test_dump_without_ptx_is_refused() -> None:
    with pytest.raises(EvidenceError, match=r"no \.version"):
        parse_ptx(ELF, "dump.ptx")


@pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas")
def test_each_part_is_assembled(tmp_path: Path) -> None:
    path = tmp_path / "dump.txt"
    path.write_text(ELF + part("first") + part("second"))
    assert detect_file_kind(path) is FileKind.PTX
    _, analysis, reason = analyze_ptx(path)
    assert reason is None
    assert all(kernel.assembled is not None for kernel in analysis.kernels)
