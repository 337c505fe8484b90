"""What nvcc makes of sources, and what it says where it makes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from cuda_programs import HOST, NO_MAIN, launching, needs_nvcc, source

from frx_graph.errors import EvidenceError
from frx_graph.measure import nvcc as module
from frx_graph.measure.nvcc import CompiledSource, Nvcc, find_nvcc
from frx_graph.support.supervisor.run import run_program


@pytest.fixture
def compiler(tmp_path: Path) -> Nvcc:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return Nvcc(find_nvcc() or "none", folder)


def compiled(compiler: Nvcc, path: Path, *flags: str, arch: str | None = "sm_80") -> CompiledSource:
    return compiler.compile_program(path, compiler.temporary / "program", arch=arch, flags=flags)


def test_a_compiler_that_cannot_be_started(compiler: Nvcc, tmp_path: Path) -> None:
    missing = Nvcc(str(tmp_path / "nvcc"), compiler.temporary)
    with pytest.raises(EvidenceError, match=r"nvcc cannot be started: No such file"):
        missing.compile_ptx(launching(tmp_path / "a.cu", blocks=1), tmp_path / "a.ptx", arch=None, flags=())


@needs_nvcc
def test_a_program(compiler: Nvcc, tmp_path: Path) -> None:
    found = compiled(compiler, launching(tmp_path / "a.cu", blocks=1))
    assert found.errors == ""
    assert found.architectures == ("sm_80",)
    (kernel,) = found.kernels
    assert "kernel" in kernel
    assert 1 <= found.kernels[kernel].registers <= 32
    assert found.program is not None
    assert not found.lacks_main


@pytest.mark.integration
@needs_nvcc
def test_a_source_is_cuda_whatever_it_is_called(compiler: Nvcc, tmp_path: Path) -> None:
    for name in ("-o.txt", "a b; touch 'x' & (y) #.cu"):
        found = compiled(compiler, source(tmp_path / name, HOST), arch=None)
        assert found.errors == ""
        assert found.program is not None
        assert run_program([str(found.program)], limit_seconds=60).output == b"sum 3.0\n"
        found.program.unlink()


@needs_nvcc
def test_ptx(compiler: Nvcc, tmp_path: Path) -> None:
    path, output = source(tmp_path / "a.txt", NO_MAIN), compiler.temporary / "a.ptx"
    assert compiler.compile_ptx(path, output, arch="sm_90", flags=()) is None
    assert ".target sm_90" in output.read_text()
    assert compiler.compile_ptx(path, output, arch="sm_90", flags=["-arch=sm_80"]) is None
    assert ".target sm_80" in output.read_text()
    output.unlink()
    said = compiler.compile_ptx(source(path, "__global__ void f() { x = 1; }"), output, arch=None, flags=())
    assert said is not None
    assert 'identifier "x" is undefined' in said
    with pytest.raises(EvidenceError, match="no such file"):
        compiler.compile_ptx(tmp_path / "none.cu", output, arch=None, flags=())


@pytest.mark.integration
@needs_nvcc
def test_flags_have_the_last_word_and_are_words(compiler: Nvcc, tmp_path: Path) -> None:
    path = source(tmp_path / "a.cu", "#include <cstdio>\nint main() { std::puts(WORD); }\n")
    found = compiled(compiler, path, '-DWORD="one two"', arch=None)
    assert found.program is not None
    assert run_program([str(found.program)], limit_seconds=60).output == b"one two\n"
    source(path, NO_MAIN)
    assert compiled(compiler, path, "-arch=sm_90").architectures == ("sm_90",)
    both = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in (90, 80)]
    assert set(compiled(compiler, path, *both).architectures) == {"sm_80", "sm_90"}
    assert compiled(compiler, path, "-gencode", "arch=compute_90,code=sm_90").architectures == ("sm_90",)


@needs_nvcc
def test_objects_among_the_flags_are_linked(compiler: Nvcc, tmp_path: Path) -> None:
    library = tmp_path / "one.o"
    helper = source(tmp_path / "one.cpp", "int one() { return 0; }")
    assert run_program([compiler.program, "-c", "-o", str(library), str(helper)], limit_seconds=600).problem is None
    path = source(tmp_path / "a.cu", "int one(); int main() { return one(); }")
    assert compiled(compiler, path, str(library)).errors == ""


@pytest.mark.integration
@needs_nvcc
def test_missing_main_is_distinguished_from_other_errors_and_keeps_its_kernels(compiler: Nvcc, tmp_path: Path) -> None:
    found = compiled(compiler, source(tmp_path / "a.cu", NO_MAIN))
    assert found.program is None
    assert found.lacks_main
    assert len(found.kernels) == 1
    wrong = compiled(compiler, source(tmp_path / "b.cu", "int main() { return nothing; }"))
    assert not wrong.lacks_main
    assert 'identifier "nothing" is undefined' in wrong.errors
    missing = compiled(compiler, source(tmp_path / "c.cu", "int other(); int main() { return other(); }"))
    assert not missing.lacks_main
    assert "other" in missing.errors
    assert "ptxas info" not in missing.errors


@needs_nvcc
@pytest.mark.parametrize("text", [b"", b"\0\1\2\xff\xfe", b"\xff\xfei\0n\0t\0", b'#include "none.h"\n'])
def test_invalid_source_is_reported(compiler: Nvcc, tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "a.cu"
    path.write_bytes(text)
    found = compiled(compiler, path)
    assert found.program is None
    assert found.errors


@needs_nvcc
def test_flags_that_make_no_program(compiler: Nvcc, tmp_path: Path) -> None:
    found = compiled(compiler, source(tmp_path / "a.cu", HOST), "-c")
    assert found.program is None
    assert "no program" in found.errors


def test_no_such_source(compiler: Nvcc, tmp_path: Path) -> None:
    for path in (tmp_path / "none.cu", tmp_path):
        with pytest.raises(EvidenceError, match="no such file"):
            compiled(compiler, path)


@pytest.mark.parametrize(
    "name", ["$(touch planted).cu", "`touch planted`.cu", 'a"b.cu', "a\\b.cu", "a\nb.cu", "\x1b[31m.cu"]
)
def test_no_name_is_run_by_a_shell(compiler: Nvcc, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EvidenceError, match="to a shell"):
        compiled(compiler, source(tmp_path / name, HOST))
    assert not (tmp_path / "planted").exists()


def test_a_compiler_that_does_not_end(compiler: Nvcc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "nvcc"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(module, "LIMIT_SECONDS", 0.3)
    found = compiled(Nvcc(str(slow), tmp_path), source(tmp_path / "a.cu", HOST))
    assert found.program is None
    assert "had not ended" in found.errors


@pytest.mark.parametrize(
    "said",
    [
        "Scrt1.o: in function `_start':\n(.text+0x17): undefined reference to `main'",
        "ld.lld: error: undefined symbol: main",
    ],
)
def test_linkers_that_miss_a_main(said: str) -> None:
    assert CompiledSource(None, {}, (), said).lacks_main
    assert not CompiledSource(None, {}, (), said.replace("main", "main_loop")).lacks_main
    assert not CompiledSource(Path("a"), {}, (), said).lacks_main


def test_nvcc_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert find_nvcc() is None
    program = tmp_path / "bin" / "nvcc"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert find_nvcc() == str(program)


@needs_nvcc
def test_cuda_runtime_folders_are_found(compiler: Nvcc) -> None:
    folders: Sequence[str] = compiler.find_runtime_folders()
    assert any(list(Path(folder).glob("libcudart.so*")) for folder in folders)
    assert not any(folder.endswith("stubs") for folder in folders)
