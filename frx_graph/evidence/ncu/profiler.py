"""Run Nsight Compute on a program, and read its log.

With `--log-file`, everything that ncu prints goes to that file: `==PROF==` lines on progress, `==ERROR==` and
`==WARNING==` lines on problems, and the table after them. The program keeps the terminal. Options and messages:
https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html; exit codes are not documented, so messages count
more.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from frx_graph.errors import EvidenceError
from frx_graph.support.supervisor.process import supervise, wait_for_exit

PERMISSION_HELP = "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
_GRACE_SECONDS = 5.0
"""When interrupted, ncu ends the program, resets the clocks that it has locked, and writes its results."""
_LONGEST_LINE = 1 << 16
_MOST_SAID, _LONGEST_SAID, _LONGEST_NAME = 20, 500, 100
"""Limits on the error lines and kernel names kept from a log, and on the length of each."""
_PROGRAM_FAILED = re.compile(r"The application returned an error code \((-?\d+)\)")
_KERNEL = re.compile(r"\s*\d+\.\s+(\S.*)")
_METRIC = re.compile(r"Failed to find metric (?:regex:\^)?([\w.\\]+)")


@dataclass(frozen=True, slots=True)
class NcuLog:
    """The content of a log.

    `connected` is True if ncu attached to a program that uses CUDA. `program_code` is the program's exit code; None for
    0, and if ncu ended the program. `available` are the launched kernels that no filter selected.
    """

    connected: bool
    table: bool
    errors: tuple[str, ...]
    program_code: int | None
    nothing_profiled: bool
    available: tuple[str, ...]


def find_ncu() -> str | None:
    """Return the ncu on the PATH, or that of the CUDA toolkit at CUDA_HOME; None without either."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return shutil.which("ncu") or (shutil.which("ncu", path=str(Path(home) / "bin")) if home else None)


def run_ncu(arguments: Sequence[str], *, output: int | None = None) -> int:
    """Run ncu with these arguments, the program's name first, and return its exit code.

    ncu gets a process group, which ends whenever the caller is interrupted. The program's standard output goes to the
    file descriptor `output`, or to the caller's. Raises `EvidenceError` if ncu cannot be started.
    """
    try:
        with supervise(
            arguments, stdin=None, stdout=output, stop_signal=signal.SIGINT, patience=_GRACE_SECONDS
        ) as process:
            wait_for_exit(process)
    except OSError as error:
        raise EvidenceError(f"{arguments[0]} cannot be started: {error.strerror or error}") from None
    return process.returncode


def read_log(path: Path) -> NcuLog:
    """Read the log at `path`, which need not exist."""
    errors: list[str] = []
    available: list[str] = []
    code: int | None = None
    connected = table = nothing = listed = ended_by_ncu = False
    for raw in _iterate_lines(path):
        if raw.startswith(b'"'):
            table = True
            continue
        if not raw.startswith(b"==") and not listed and not raw.startswith(b"Available Kernels"):
            continue
        line = raw.decode("utf-8", "replace").strip()
        if listed and (kernel := _KERNEL.fullmatch(line)):
            if len(available) < _MOST_SAID:
                available.append(kernel[1][:_LONGEST_NAME])
        elif line.startswith("==ERROR=="):
            said = line.removeprefix("==ERROR==").strip()
            if failed := _PROGRAM_FAILED.search(said):
                code = int(failed[1])
            elif said and len(errors) < _MOST_SAID:
                errors.append(said[:_LONGEST_SAID])
        connected |= line.startswith("==PROF== Connected to process")
        nothing |= "No kernels were profiled" in line
        ended_by_ncu |= "Trying to shutdown target application" in line
        listed |= line.startswith("Available Kernels")
    return NcuLog(
        connected=connected,
        table=table,
        errors=tuple(errors),
        program_code=None if ended_by_ncu else code or None,
        nothing_profiled=nothing,
        available=tuple(available),
    )


def _iterate_lines(path: Path) -> Iterator[bytes]:
    with contextlib.suppress(OSError), path.open("rb") as file:
        while raw := file.readline(_LONGEST_LINE):
            yield raw


def explain_failure(log: NcuLog, exit_code: int, kernel: str | None) -> EvidenceError | None:
    """Return the reason why ncu, which has returned `exit_code`, has measured nothing, or not everything. `kernel` is
    its kernel filter. None if everything was measured."""
    said = " ".join(log.errors)
    if "ERR_NVGPUCTRPERM" in said or "permission to access NVIDIA GPU Performance Counters" in said:
        return EvidenceError(
            "this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM)",
            "run it with sudo, or as an administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0; a "
            f"container needs --cap-add=SYS_ADMIN: {PERMISSION_HELP}",
        )
    if "driver resource was unavailable" in said:
        return EvidenceError(
            "the GPU's performance counters are in use by another tool",
            "if it is DCGM: `dcgmi profile --pause` as an administrator, and `--resume` afterwards",
        )
    if log.program_code is not None and not log.connected:
        # The program's process loads the driver, and its errors go to the terminal.
        hint = "the output above says why: is there a GPU, and a driver that this ncu knows?"
        return EvidenceError(f"ncu could not attach to the program, whose exit code is {log.program_code}", hint)
    if log.program_code is not None:
        return EvidenceError(f"the program ended with exit code {log.program_code}", "does it run without frx?")
    if unknown := _METRIC.search(said):
        name = unknown[1].replace("\\", "")
        return EvidenceError(f"ncu knows no metric {name} on this device", "take a narrower --preset, or another ncu")
    if log.errors:
        return EvidenceError(f"ncu: {'; '.join(log.errors[:3])}")
    if log.nothing_profiled or (not log.table and exit_code == 0):
        return _explain_nothing_profiled(log, kernel)
    if exit_code < 0:
        return EvidenceError(f"ncu was ended by signal {-exit_code}")
    return EvidenceError(f"ncu ended with exit code {exit_code}, and does not say why") if exit_code else None


def _explain_nothing_profiled(log: NcuLog, kernel: str | None) -> EvidenceError:
    if log.available:
        names = ", ".join(log.available[:5]) + (", ..." if len(log.available) > 5 else "")
        by = "these options leave nothing" if kernel is None else f"--kernel-name {kernel} matches none"
        hint = "a name must be the whole one, without arguments; regex:PART matches a part"
        return EvidenceError(f"no kernels were profiled: {by} of {names}", hint)
    if kernel is not None:
        return EvidenceError(f"no kernels were profiled: --kernel-name {kernel} matches none", "regex:PART for a part")
    return EvidenceError("no kernels were profiled", "does the program run on the GPU? a --launch-skip may be too high")
