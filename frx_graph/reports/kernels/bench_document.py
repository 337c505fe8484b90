"""Comparison of two CUDA programs as JSON: the document `frx_bench_v0`. Times are in milliseconds."""

from __future__ import annotations

import statistics
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from frx_graph.analyzers.comparison.ncu_diff import NcuDiff
from frx_graph.reports.kernels.compare_document import NcuDiffPart, build_diff
from frx_graph.reports.render.document import Part, Text, WrittenPart, read_from
from frx_graph.reports.render.marked_text import split_lines
from frx_graph.reports.render.quantities import drop_non_finite
from frx_graph.support.plain_text import clean_line, escape_surrogates
from frx_graph.trials.program_bench import WORDS, BenchRun, BenchSide
from frx_graph.trials.program_outputs import ABSOLUTE, RELATIVE
from frx_graph.trials.program_times import CONFIDENCE
from frx_graph.trials.schedule import Arm

NEEDS_MAIN = (
    "it needs a main: frx bench runs whole programs. Add an `int main()` that launches the kernel, waits for it "
    "(cudaDeviceSynchronize), prints what it has computed, and returns 0"
)
_ERROR_LINES = 40
"""Errors reported of one side; later ones are mostly consequences."""


def _get_word(arm: Arm | str) -> str:
    return WORDS[arm] if isinstance(arm, Arm) else arm


def _decode_line(line: bytes | str | None) -> str | None:
    return clean_line(line.decode(errors="replace")) if isinstance(line, bytes) else line


_Word = Annotated[Literal["before", "after"], BeforeValidator(_get_word)]
_Line = Annotated[str | None, BeforeValidator(_decode_line)]


class BenchKernelPart(Part):
    """A kernel as assembled."""

    name: str
    registers: int
    spill_stores: int = read_from("spill_store_bytes", "bytes a thread")
    spill_loads: int = read_from("spill_load_bytes", "bytes a thread")
    stack_bytes: int
    shared_bytes: int = Field(description="declared, without the part that a launch adds")


class TimingPart(Part):
    """Times of one program; null: not timed."""

    median_ms: float | None
    min_ms: float | None
    max_ms: float | None
    stdev_ms: float | None = Field(description="of a sample")
    runs: int
    samples_ms: tuple[float, ...] = Field(description="in the order they were run")


class BenchSidePart(TimingPart):
    """One program, with the wall time of whole processes."""

    source: str
    warmup: int
    architectures: tuple[str, ...] = Field(description="for which the kernels were assembled")
    kernels: tuple[BenchKernelPart, ...] = Field(description="for the last of these architectures")
    problem: str | None = Field(description="the failure of a run, which ended the measurement; null: none")
    problem_stderr: tuple[str, ...] = Field(description="standard error of that run")


class RatioPart(WrittenPart):
    """Ratios of quads of runs, before over after. Above 1, after is faster."""

    ratio_median: float
    low: float = read_from("ci_low")
    high: Annotated[float | None, BeforeValidator(drop_non_finite)] = read_from("ci_high", "null: no bound")
    confidence: float = CONFIDENCE
    quads: int


class KernelTimePart(Part):
    """Sums over the launches of a run, by CUDA events, in separate runs."""

    before: TimingPart
    after: TimingPart
    launches_before: int
    launches_after: int
    speedup_x: float
    ci: RatioPart
    verdict: Literal["faster", "slower", "no difference shown"]


class OutputsPart(WrittenPart):
    """Comparison of the standard output of the two first runs."""

    agreement: Literal["identical", "within_tolerance", "different", "nothing_printed"]
    relative_tolerance: float = RELATIVE
    absolute_tolerance: float = ABSOLUTE
    numbers: int | None = Field(description="compared one by one; null: equal outputs, or different text")
    numbers_off: int | None = Field(description="of these, beyond the tolerance")
    largest_absolute: Annotated[float | None, BeforeValidator(drop_non_finite)]
    largest_relative: Annotated[float | None, BeforeValidator(drop_non_finite)]
    first_line: int | None = Field(description="first line that differs, from 1")
    before_line: _Line
    after_line: _Line
    varying: tuple[_Word, ...] = Field(description="sides whose output changes from run to run")


class CompileErrors(Part):
    """Reasons by side; null: it was compiled."""

    before: str | None
    after: str | None


class BenchDocument(Part):
    """Two programs."""

    schema_: Literal["frx_bench_v0"] = Field(default="frx_bench_v0", alias="schema")
    arch: str | None = read_from("options.arch", "the requested one; null: the GPUs of this machine")
    build_flags: tuple[Text, ...] = read_from("options.flags")
    gpus: tuple[Annotated[str, BeforeValidator(clean_line)], ...] = Field(description="names, in bus order")
    before: BenchSidePart
    after: BenchSidePart
    speedup_x: float | None = Field(description="median wall time of before over that of after")
    ci: RatioPart | None
    verdict: Literal["faster", "slower", "no difference shown"] | None = Field(description="of after; null: not run")
    order: tuple[_Word, ...] = Field(description="order of the programs' runs")
    kernel_time: KernelTimePart | None
    no_kernel_time_because: str | None = read_from("no_kernel_times")
    outputs: OutputsPart | None
    ncu_diff: NcuDiffPart | None = Field(description="before is a, after is b; null: Nsight Compute did not run")
    no_ncu_diff_because: str | None
    compile_errors: CompileErrors
    not_run_because: Text | None


def build_bench_document(run: BenchRun, ncu: NcuDiff | str | None = None) -> BenchDocument:
    """Return the document of the programs and runs, with Nsight Compute's measurement or the reason for its absence."""
    wall, kernels = run.wall, run.kernels
    return BenchDocument.from_record(
        run,
        before=_build_side(run, run.before, () if wall is None else wall.before_seconds),
        after=_build_side(run, run.after, () if wall is None else wall.after_seconds),
        speedup_x=None if wall is None else wall.speedup,
        ci=wall,
        verdict=None if wall is None else wall.direction.value,
        kernel_time=None
        if kernels is None
        else KernelTimePart.from_record(
            kernels,
            before=TimingPart(**_summarize_times(kernels.times.before_seconds)),
            after=TimingPart(**_summarize_times(kernels.times.after_seconds)),
            launches_before=kernels.before.launches,
            launches_after=kernels.after.launches,
            speedup_x=kernels.times.speedup,
            ci=kernels.times,
            verdict=kernels.times.direction.value,
        ),
        outputs=None if run.outputs is None else OutputsPart.from_record(run.outputs, varying=run.varying),
        ncu_diff=build_diff(NcuDiffPart, ncu) if isinstance(ncu, NcuDiff) else None,
        no_ncu_diff_because=escape_surrogates(ncu) if isinstance(ncu, str) else None,
        compile_errors=CompileErrors(before=_format_errors(run.before), after=_format_errors(run.after)),
    )


def _build_side(run: BenchRun, side: BenchSide, seconds: tuple[float, ...]) -> BenchSidePart:
    return BenchSidePart(
        **_summarize_times(seconds),
        source=escape_surrogates(str(side.source)),
        warmup=run.options.warmup if seconds else 0,
        architectures=side.compiled.architectures,
        kernels=tuple(BenchKernelPart.from_record(kernel, name=name) for name, kernel in side.compiled.kernels.items()),
        problem=side.problem,
        problem_stderr=tuple(split_lines(side.errors.decode(errors="replace"))[:_ERROR_LINES]),
    )


def _summarize_times(seconds: tuple[float, ...]) -> dict[str, Any]:
    milliseconds = tuple(value * 1e3 for value in seconds)
    return {
        "median_ms": statistics.median(milliseconds) if milliseconds else None,
        "min_ms": min(milliseconds, default=None),
        "max_ms": max(milliseconds, default=None),
        "stdev_ms": statistics.stdev(milliseconds) if len(milliseconds) > 1 else None,
        "runs": len(milliseconds),
        "samples_ms": milliseconds,
    }


def _format_errors(side: BenchSide) -> str | None:
    if side.compiled.program is not None:
        return None
    if side.compiled.lacks_main:
        return NEEDS_MAIN
    return "\n".join(split_lines(side.compiled.errors)[:_ERROR_LINES])
