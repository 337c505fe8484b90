"""Run the assembler on a kernel for its registers and spills.

Only `ptxas -v` knows them: registers in PTX are virtual, and neither their number nor arrays in local memory imply
spills.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from frx_graph.errors import EvidenceError
from frx_graph.support.supervisor.run import RunEnding, run_program

_LIMIT_SECONDS = 120.0
_SUBJECT = re.compile(r"(?:Compiling entry function|Function properties for) '?([\w$%]+)'?")
_USED = re.compile(r"Used (\d+) registers")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED = re.compile(r"(\d+) bytes smem")
_TARGET = re.compile(r"\bsm_\d+[af]?\b")
_PORTABLE_TARGET = re.compile(r"\bsm_(\d+)\b")
_KNOWN_TARGET = re.compile(r"'sm_(\d+)'")
_LAST_WORDS = "aborted due to errors"
_TOO_NEW = "Unsupported .version"


@dataclass(frozen=True, slots=True)
class Assembled:
    """One entry. Spills are bytes per thread; `stack_bytes` is its frame in local memory, including spills."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int

    @property
    def spills(self) -> bool:
        """Return True if anything was spilled."""
        return self.spill_store_bytes + self.spill_load_bytes > 0


def find_ptxas() -> str | None:
    """Return the assembler on the PATH, or that of the CUDA toolkit at CUDA_HOME; None without either."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return shutil.which("ptxas") or (shutil.which("ptxas", path=str(Path(home) / "bin")) if home else None)


def assemble(ptx: Path, target: str, *, program: str | None = None) -> Mapping[str, Assembled]:
    """Assemble the file at `ptx` for the architecture that its `.target` names, and return each entry by name. Raises
    `EvidenceError` if there is no assembler, or if it refuses the file or takes longer than two minutes."""
    program = program or find_ptxas()
    if program is None:
        raise EvidenceError("there is no ptxas", "install the CUDA toolkit, or set CUDA_HOME")
    architecture = _TARGET.search(target)
    if architecture is None:
        raise EvidenceError(f"{ptx}: .target {target!r} names no architecture")
    with tempfile.TemporaryDirectory(prefix="frx-ptxas-") as folder:
        output = str(Path(folder) / "out.cubin")
        # A path cannot be read as an option, and errors quote the name that was given.
        named = str(ptx) if ptx.is_absolute() else f"./{ptx}"
        arguments = [program, "-v", "--gpu-name", architecture[0], "--output-file", output, named]
        return parse_report(_run(arguments, ptx))


def find_oldest_target(target: str, *, program: str | None = None) -> str | None:
    """Return the oldest architecture that the assembler knows and that runs PTX for `target`, if it has dropped that
    one; None if it knows it, or none that is later. Raises `EvidenceError` if there is no assembler."""
    program = program or find_ptxas()
    if program is None:
        raise EvidenceError("there is no ptxas", "install the CUDA toolkit, or set CUDA_HOME")
    wanted = _PORTABLE_TARGET.search(target)
    known = {int(number) for number in _KNOWN_TARGET.findall(_run([program, "--help"], Path(program)))}
    if wanted is None or int(wanted[1]) in known:
        return None
    later = min((number for number in known if number > int(wanted[1])), default=None)
    return None if later is None else f"sm_{later}"


def parse_report(text: str) -> Mapping[str, Assembled]:
    """Parse the output of `ptxas -v` by entry."""
    found: dict[str, Assembled] = {}
    name, frame = "", (0, 0, 0)
    for line in text.splitlines():
        if subject := _SUBJECT.search(line):
            name, frame = subject[1], (0, 0, 0)
        elif stack := _FRAME.search(line):
            frame = (int(stack[1]), int(stack[2]), int(stack[3]))
        elif (used := _USED.search(line)) and name:
            shared = _SHARED.search(line)
            found[name] = Assembled(int(used[1]), *frame, shared_bytes=int(shared[1]) if shared else 0)
    return found


def _run(arguments: list[str], ptx: Path) -> str:
    try:
        ran = run_program(arguments, limit_seconds=_LIMIT_SECONDS)
    except OSError as error:
        raise EvidenceError(f"{arguments[0]} cannot be started: {error.strerror or error}") from None
    if ran.ending is RunEnding.TIMED_OUT:
        raise EvidenceError(f"{ptx}: ptxas took longer than {_LIMIT_SECONDS:.0f} s")
    text = (ran.errors + ran.output).decode(errors="replace")
    if ran.problem is not None:
        told = (line for line in text.splitlines() if "error" in line.lower() or "fatal" in line.lower())
        first = next((line for line in told if _LAST_WORDS not in line), text.strip()[:200])
        hint = "this ptxas is older than the file: install a newer CUDA toolkit" if _TOO_NEW in first else ""
        raise EvidenceError(f"{ptx}: ptxas refuses it: {first.strip() or ran.problem}", hint)
    return text
