"""Measure the kernels of a program with Nsight Compute, and analyse the result."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from frx_graph.analyze.layers import analyze_ncu
from frx_graph.analyzers.kernels.analysis import KernelAnalysis
from frx_graph.errors import FrxError, OptionError
from frx_graph.evidence.ncu.export import NcuExport
from frx_graph.evidence.ncu.presets import Preset, ncu_arguments
from frx_graph.evidence.ncu.profiler import read_log, run_ncu, trouble
from frx_graph.rules.gpu_profile import GpuProfile
from frx_graph.support.atomic_file import replaced_when_written
from frx_graph.support.termination import cleaned_up_when_terminated


@dataclasses.dataclass(frozen=True, slots=True)
class Filters:
    """Launches to measure; None: all."""

    kernel: str | None = None
    skip: int | None = None
    count: int | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the options of the command line."""
        given = (("--kernel-name", self.kernel), ("--launch-skip", self.skip), ("--launch-count", self.count))
        return tuple(str(word) for name, value in given if value is not None for word in (name, value))

    def ncu_arguments(self, preset: Preset, command: Sequence[str], output: str) -> list[str]:
        """The command that measures so, `ncu` first, and writes to the file `output`."""
        return ncu_arguments(
            preset, command, output=output, kernel=self.kernel, launch_skip=self.skip, launch_count=self.count
        )


def measure_kernels(
    ncu: str,
    command: Sequence[str],
    preset: Preset,
    filters: Filters,
    out: Path | None,
    *,
    gpu: GpuProfile | None = None,
    program_output: int | None = None,
) -> tuple[NcuExport, KernelAnalysis, FrxError | None]:
    """Run `command` under the program at `ncu`. Returns the measurement, its analysis, and an error if only a part was
    measured.

    The export is kept in the file `out`, which is replaced when ncu has ended. The program's standard output goes to
    the file descriptor `program_output`, or stays where it is. Raises `EvidenceError` if nothing was measured, and
    `OSError` if `out` cannot be written.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(cleaned_up_when_terminated())
        path = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="frx-ncu-")), "ncu_report.csv")
        with replaced_when_written(path) as log:
            _, *arguments = filters.ncu_arguments(preset, command, str(log))
            code = run_ncu([ncu, *arguments], output=program_output)
            said = read_log(log)
            failed: FrxError | None = trouble(said, code, filters.kernel)
            if failed is not None and not said.table:
                raise failed
        try:
            export, analysis = analyze_ncu(path, gpu)
        except OptionError as error:
            # What took minutes to measure is shown all the same, judged by the device that it was measured on.
            said_nothing = f"--gpu-model {gpu.name} says nothing of these kernels" if gpu is not None else error.message
            failed = failed or OptionError(said_nothing, error.hint)
            export, analysis = analyze_ncu(path)
    return dataclasses.replace(export, source=shlex.join(command) if out is None else str(out)), analysis, failed
