"""What the assembler makes of PTX: its own words on registers and spills, and the instructions that come out."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TENSOR = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?((?:UTC)?[A-Z]*MMA)\b", re.MULTILINE)
"""HMMA, IMMA, BMMA, DMMA, QMMA, OMMA, their warp group forms HGMMA…, and UTCHMMA… of tensor memory. `HFMA2.MMA`, an
addition, is none, nor `UTCBAR`."""
_FUNCTION = re.compile(r"^\s*Function : (\S+)", re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '[^']+'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_LIMIT_SECONDS = 300.0


@dataclass(frozen=True)
class Truth:
    """Of one entry, from ptxas."""

    registers: int
    spill_stores: int
    spill_loads: int


def cuobjdump() -> str | None:
    """The disassembler of the toolkit, or the one that Triton brings; None where there is none."""
    if found := shutil.which("cuobjdump"):
        return found
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        return None
    brought = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return str(brought) if brought.exists() else None


def truth(
    module: Path, target: str, folder: Path
) -> tuple[Mapping[str, Truth] | str, Mapping[str, Counter[str]] | None]:
    """Each entry of the module, or why the assembler refuses it, and the tensor instructions of each function in SASS,
    by mnemonic, None where nothing disassembles. A function that is not inlined has its own."""
    cubin = folder / "truth.cubin"
    command = ["ptxas", "-v", "--gpu-name", target, "-o", str(cubin), str(module)]
    done = _run(command)
    if "--compile-only" in done.stderr or "Unresolved extern" in done.stderr:
        done = _run([command[0], "--compile-only", *command[1:]])
    if done.returncode:
        lines = done.stderr.splitlines()
        return next((line for line in lines if "error" in line or "fatal" in line), done.stderr[:200]), None
    said = done.stderr + done.stdout
    begins = list(_ENTRY.finditer(said))
    found = {}
    for entry, behind in zip(begins, [*(one.start() for one in begins[1:]), len(said)], strict=False):
        part = said[entry.end() : behind]
        used = re.search(r"Used (\d+) registers", part)
        # The entry's own properties come first, those of functions that it calls behind them.
        spills = re.search(rf"Function properties for {re.escape(entry[1])}\n(.*)", part)
        stores = _SPILLS.search(spills[1]) if spills else None
        assert used is not None and stores is not None, f"{module}: {entry[1]}: {part[:200]}"
        found[entry[1]] = Truth(int(used[1]), int(stores[1]), int(stores[2]))
    return found, _tensor(cubin)


def _tensor(cubin: Path) -> Mapping[str, Counter[str]] | None:
    program = cuobjdump()
    if program is None:
        return None
    done = _run([program, "-sass", str(cubin)])
    if done.returncode:
        return None
    begins = list(_FUNCTION.finditer(done.stdout))
    return {
        one[1]: Counter(_TENSOR.findall(done.stdout, one.end(), end))
        for one, end in zip(begins, [*(other.start() for other in begins[1:]), len(done.stdout)], strict=False)
    }


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_SECONDS, check=False
    )
