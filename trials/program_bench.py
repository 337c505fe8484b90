"""Compile and run two CUDA sources, and compare their times and outputs.

Wall time and kernel time come from separate runs, since events around each launch take time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from frx_graph.errors import EvidenceError
from frx_graph.measure.kernel_clock import KernelClock, KernelTime, build_kernel_clock
from frx_graph.measure.nvcc import CompiledSource, Nvcc
from frx_graph.support.supervisor.run import ProgramRun, run_program
from frx_graph.trials.program_outputs import OutputComparison, compare_outputs
from frx_graph.trials.program_times import ProgramComparison, compare_programs, make_program_schedule
from frx_graph.trials.samples import Block, MeasuredQuad
from frx_graph.trials.schedule import Arm

Progress = Callable[[str], None]

WORDS: Mapping[Arm, Literal["before", "after"]] = {Arm.BASELINE: "before", Arm.CANDIDATE: "after"}
_NO_GPU = "there is no NVIDIA GPU here: programs that use a GPU would fail, and their times would mean nothing"


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of a benchmark."""

    runs: int = 20
    """Runs of each program: even, and at least `program_times.FEWEST_RUNS`."""
    warmup: int = 5
    """Uncounted runs of each program before."""
    arch: str | None = None
    """"sm_90"; None: the GPUs that are here."""
    flags: tuple[str, ...] = ()
    limit_seconds: float = 120.0
    """Time limit of one run."""


@dataclass(frozen=True, slots=True)
class BenchSide:
    """One of the two programs."""

    source: Path
    compiled: CompiledSource
    problem: str | None = None
    """The failure of one of the program's runs, which ended the benchmark."""
    errors: bytes = b""


@dataclass(frozen=True, slots=True)
class KernelComparison:
    """Kernel time of both, and how many launches the last run of each had."""

    times: ProgramComparison
    before: KernelTime
    after: KernelTime


@dataclass(frozen=True, slots=True)
class BenchRun:
    """The result. `wall` and `outputs` are None if the programs were not run to the end."""

    options: BenchOptions
    gpus: tuple[str, ...]
    before: BenchSide
    after: BenchSide
    not_run_because: str | None
    order: tuple[Arm, ...] = ()
    wall: ProgramComparison | None = None
    kernels: KernelComparison | None = None
    no_kernel_times: str | None = None
    """The reason why `kernels` is None, if `wall` is not."""
    outputs: OutputComparison | None = None
    varying: tuple[Arm, ...] = ()
    """Programs whose output changed from run to run."""


class _RunError(Exception):
    def __init__(self, arm: Arm, ran: ProgramRun) -> None:
        super().__init__(ran.problem)
        self.arm, self.ran = arm, ran


def bench_programs(
    before: Path, after: Path, options: BenchOptions, *, gpus: Sequence[str], nvcc: Nvcc, progress: Progress
) -> BenchRun:
    """Compile both, and run them if there are `gpus` (their names). Raises `EvidenceError` for a source that is not a
    file, and a program that cannot be started."""
    folder = nvcc.temporary
    arch = options.arch or ("native" if gpus else None)
    sides = []
    for source, name in ((before, "before"), (after, "after")):
        progress(f"compiling {source}")
        sides.append(BenchSide(source, nvcc.compile_program(source, folder / name, arch=arch, flags=options.flags)))
    compiled = BenchRun(options, tuple(gpus), sides[0], sides[1], not_run_because=None)
    failed = [side.source for side in sides if side.compiled.program is None]
    if failed:
        return replace(compiled, not_run_because=f"not compiled: {', '.join(map(str, failed))}")
    if not gpus:
        return replace(compiled, not_run_because=_NO_GPU)
    programs = _ProgramRunner(dict(zip(Arm, sides, strict=True)), options.limit_seconds, nvcc.find_runtime_folders())
    try:
        for number in range(options.warmup):
            progress(f"warming up, {number + 1} of {options.warmup}")
            for arm in Arm:
                programs.run(arm)
        quads = _measure_quads(options.runs, programs.run, "timing programs", progress)
    except _RunError as error:
        return _add_problem(compiled, error)
    progress("compiling the clock of kernels")
    clock = build_kernel_clock(nvcc, folder)
    kernels = clock if isinstance(clock, str) else _measure_kernel_times(programs, clock, options.runs, progress)
    return replace(
        compiled,
        order=tuple(arm for quad in quads for arm in quad.quad.arms),
        wall=compare_programs(quads),
        kernels=None if isinstance(kernels, str) else kernels,
        no_kernel_times=kernels if isinstance(kernels, str) else None,
        outputs=compare_outputs(programs.outputs[Arm.BASELINE], programs.outputs[Arm.CANDIDATE]),
        varying=tuple(arm for arm in Arm if arm in programs.varying),
    )


class _ProgramRunner:
    """Runs both programs; remembers the first output of each, and if it changes."""

    def __init__(self, sides: Mapping[Arm, BenchSide], limit_seconds: float, libraries: Sequence[str]) -> None:
        self._sides = sides
        self._limit = limit_seconds
        path = os.pathsep.join(filter(None, (os.environ.get("LD_LIBRARY_PATH"), *libraries)))
        self.environment = {**os.environ, "LD_LIBRARY_PATH": path}
        self.outputs: dict[Arm, bytes] = {}
        self.varying: set[Arm] = set()

    def run(self, arm: Arm, environment: Mapping[str, str] | None = None) -> float:
        """Run one program; return its seconds. Raises `_RunError`."""
        program = self._sides[arm].compiled.program
        try:
            ran = run_program(
                [str(program)],
                limit_seconds=self._limit,
                environment=self.environment if environment is None else environment,
            )
        except OSError as error:
            raise EvidenceError(f"{program} cannot be started: {error.strerror or error}") from None
        if ran.problem is not None:
            raise _RunError(arm, ran)
        if self.outputs.setdefault(arm, ran.output) != ran.output:
            self.varying.add(arm)
        return ran.seconds


def _measure_kernel_times(
    programs: _ProgramRunner, clock: KernelClock, runs: int, progress: Progress
) -> KernelComparison | str:
    """Time the programs' kernels alone; return the comparison, or why there is none."""
    environment = clock.make_environment(programs.environment)
    last: dict[Arm, KernelTime] = {}

    def time_kernels(arm: Arm) -> float:
        programs.run(arm, environment)
        found = clock.read()
        if found is None:
            raise EvidenceError(f"{WORDS[arm]} left no times: it did not end by exit, or return from main")
        if not found.launches:
            raise EvidenceError(
                f"no launch of {WORDS[arm]} was seen (by the driver's API, or a static runtime, none is)"
            )
        if found.timed < found.launches or found.seconds <= 0:
            raise EvidenceError(
                f"{found.launches - found.timed} of {found.launches} launches of {WORDS[arm]} have no time"
            )
        last[arm] = found
        return found.seconds

    try:
        quads = _measure_quads(runs, time_kernels, "timing kernels", progress)
    except _RunError as error:
        return f"with the clock {WORDS[error.arm]} fails: {error}"
    except EvidenceError as error:
        return str(error)
    return KernelComparison(compare_programs(quads), last[Arm.BASELINE], last[Arm.CANDIDATE])


def _measure_quads(runs: int, seconds: Callable[[Arm], float], what: str, progress: Progress) -> list[MeasuredQuad]:
    plan = make_program_schedule(runs)
    found = []
    for number, quad in enumerate(plan, start=1):
        progress(f"{what}, quad {number} of {len(plan)}")
        first, second, third, fourth = (Block(arm, (seconds(arm),)) for arm in quad.arms)
        found.append(MeasuredQuad(quad, (first, second, third, fourth)))
    return found


def _add_problem(run: BenchRun, error: _RunError) -> BenchRun:
    failed = run.before if error.arm is Arm.BASELINE else run.after
    side = replace(failed, problem=error.ran.problem, errors=error.ran.errors)
    reason = f"{side.source}: {side.problem}"
    if error.arm is Arm.BASELINE:
        return replace(run, before=side, not_run_because=reason)
    return replace(run, after=side, not_run_because=reason)
