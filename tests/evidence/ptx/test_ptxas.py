"""What the assembler prints, and that it is asked for what the file is for."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from frx_graph.errors import EvidenceError
from frx_graph.evidence.ptx import ptxas
from frx_graph.evidence.ptx.ptxas import Assembled, assemble, find_oldest_target, find_ptxas, parse_report

KERNELS = Path(__file__).parent.parent.parent / "data" / "ptx" / "kernels_sm80.ptx"
REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spills' for 'sm_80'
ptxas info    : Function properties for spills
    1144 bytes stack frame, 1396 bytes spill stores, 2244 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 1144 bytes cumulative stack size, 368 bytes cmem[0]
ptxas info    : Function properties for _Z6helperf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'tiles' for 'sm_80'
ptxas info    : Function properties for tiles
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 256 bytes smem, 372 bytes cmem[0]
"""


def program(folder: Path, script: str) -> str:
    path = folder / "ptxas"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_report() -> None:
    found = parse_report(REPORT)
    assert found == {
        "spills": Assembled(32, 1144, 1396, 2244, shared_bytes=0),
        "tiles": Assembled(12, 0, 0, 0, shared_bytes=256),
    }
    assert (found["spills"].spills, found["tiles"].spills) == (True, False)


def test_what_it_is_given(tmp_path: Path) -> None:
    fake = program(tmp_path, f'echo "$@" > {tmp_path}/given; cat << END\n{REPORT}END')
    assert set(assemble(KERNELS, "sm_80, texmode_independent", program=fake)) == {"spills", "tiles"}
    words = (tmp_path / "given").read_text().split()
    assert words[:3] == ["-v", "--gpu-name", "sm_80"]
    assert words[-1] == str(KERNELS)


@pytest.mark.parametrize(
    ("script", "target", "said"),
    [
        (
            "echo 'ptxas k.ptx, line 3; error   : Unknown symbol'; exit 255",
            "sm_80",
            "ptxas refuses it: .*Unknown symbol",
        ),
        ("exit 0", "debug", "names no architecture"),
        (
            "echo 'ptxas k.ptx, line 1; fatal   : Unsupported .version 9.9; current version is 9.0' >&2;"
            "echo 'ptxas fatal   : Ptx assembly aborted due to errors' >&2; exit 255",
            "sm_80",
            "line 1; fatal .*Unsupported .version 9.9.*older than the file",
        ),
    ],
)
def test_assembler_errors_are_reported(tmp_path: Path, script: str, target: str, said: str) -> None:
    with pytest.raises(EvidenceError, match=said):
        assemble(KERNELS, target, program=program(tmp_path, script))


HELP = "echo \"Allowed values for this option: 'compute_75','sm_100','sm_100a','sm_75','sm_80','sm_90a'\""


@pytest.mark.parametrize(
    ("target", "oldest"),
    [("sm_52", "sm_75"), ("sm_75", None), ("sm_78", "sm_80"), ("sm_101", None), ("sm_90a", None), ("debug", None)],
)
def test_the_oldest_architecture_for_a_target_that_was_dropped(tmp_path: Path, target: str, oldest: str | None) -> None:
    assert find_oldest_target(target, program=program(tmp_path, HELP)) == oldest


def test_an_assembler_that_cannot_be_started_or_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EvidenceError, match="ptxas cannot be started: No such file"):
        assemble(KERNELS, "sm_80", program=str(tmp_path / "ptxas"))
    monkeypatch.setattr(ptxas, "_LIMIT_SECONDS", 0.2)
    with pytest.raises(EvidenceError, match="ptxas took longer than 0 s"):
        assemble(KERNELS, "sm_80", program=program(tmp_path, "exec sleep 600"))


def test_without_an_assembler_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert find_ptxas() is None
    with pytest.raises(EvidenceError, match="there is no ptxas"):
        assemble(KERNELS, "sm_80")


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
def test_the_real_one() -> None:
    found = assemble(KERNELS, "sm_80")
    assert len(found) == 5
    assert [name for name, kernel in found.items() if kernel.spills] == ["spills"]
    assert all(0 < kernel.registers <= 255 for kernel in found.values())
