"""Two programs beside each other as JSON and for people."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from frx_graph.analyzers.comparison.ncu_diff import compare_ncu, match_measured
from frx_graph.analyzers.kernels.analysis import analyze_kernels
from frx_graph.analyzers.kernels.kernel_totals import KernelTotals
from frx_graph.analyzers.layers import NcuLayer
from frx_graph.evidence.ncu.launch import KernelLaunch, NcuExport
from frx_graph.evidence.ptx.ptxas import Assembled
from frx_graph.measure.kernel_clock import KernelTime
from frx_graph.measure.nvcc import CompiledSource
from frx_graph.reports.kernels.bench_document import NEEDS_MAIN, BenchDocument, build_bench_document
from frx_graph.reports.kernels.bench_report import render_bench
from frx_graph.reports.render.document import to_json
from frx_graph.trials.program_bench import BenchOptions, BenchRun, BenchSide, KernelComparison
from frx_graph.trials.program_outputs import compare_outputs
from frx_graph.trials.program_times import ProgramComparison
from frx_graph.trials.schedule import ABBA, Arm

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_bench_v0.schema.json").read_text(encoding="utf-8")
HOSTILE = "\x1b[31mred\x1b[0m\u202e[bold]"
SPILLING = Assembled(255, 1144, 1396, 2244, 0)


def side(name: str, **parts: Any) -> BenchSide:
    return BenchSide(Path(name), CompiledSource(Path("/tmp/a"), {"_Z6kernelPf": SPILLING}, ("sm_90",), ""), **parts)


def failed(name: str, errors: str) -> BenchSide:
    return BenchSide(Path(name), CompiledSource(None, {}, (), errors))


def times(before: float, after: float, low: float, high: float) -> ProgramComparison:
    return ProgramComparison((before, before * 1.1) * 2, (after, after * 1.1) * 2, before / after, low, high, 2)


OPTIONS = BenchOptions(runs=4, warmup=1, arch="sm_90", flags=("-O3",))
NOT_RUN = BenchRun(OPTIONS, (), side("a.cu"), side("b.cu"), "there is no NVIDIA GPU here")
WALL = times(0.012, 0.012, 0.9, 1.1)
RUN = BenchRun(
    OPTIONS,
    ("NVIDIA H100",),
    side("a.cu"),
    side("b.cu"),
    None,
    ABBA * 2,
    WALL,
    KernelComparison(times(2e-3, 1e-3, 1.9, 2.1), KernelTime(10, 10, 2e-3), KernelTime(5, 5, 1e-3)),
    None,
    compare_outputs(b"sum 1.5\n", b"sum 1.5000001\n"),
)
NO_KERNELS = replace(RUN, kernels=None, no_kernel_times="no launch of after was seen", varying=(Arm.BASELINE,))
NOT_COMPILED = BenchRun(
    OPTIONS,
    ("NVIDIA H100",),
    failed("a.cu", "undefined reference to `main'"),
    failed("b.cu", f"b.cu(1): error: {HOSTILE}\n" + "more\n" * 100),
    "not compiled: a.cu, b.cu",
)
CRASHED = replace(
    NOT_RUN, after=side("b.cu", problem="it was ended by SIGSEGV", errors=HOSTILE.encode() + b"\xff\n" * 100)
)
DIFFERENT = replace(RUN, outputs=compare_outputs(f"a\n{HOSTILE}\n".encode() * 99, b"a\n" + b"\xff" * 999))
UNBOUNDED = replace(RUN, wall=times(1.0, 1e-3, 1e-4, float("inf")), outputs=compare_outputs(b"1e999", b"2e999"))
ALL = {
    "not run": NOT_RUN,
    "run": RUN,
    "no kernels": NO_KERNELS,
    "not compiled": NOT_COMPILED,
    "crashed": CRASHED,
    "different": DIFFERENT,
    "unbounded": UNBOUNDED,
}


def rendered(run: BenchRun) -> str:
    return render_bench(build_bench_document(run), width=80, color=False)


@pytest.mark.parametrize("run", ALL.values(), ids=ALL)
def test_document_matches_the_schema(run: BenchRun) -> None:
    published = json.loads(PUBLISHED)
    jsonschema.Draft202012Validator.check_schema(published)
    found = build_bench_document(run)
    text = json.dumps(to_json(found), allow_nan=False)
    jsonschema.Draft202012Validator(published).validate(json.loads(text))
    assert BenchDocument.model_validate_json(text) == found


@pytest.mark.parametrize("run", ALL.values(), ids=ALL)
@pytest.mark.parametrize("color", [True, False])
def test_what_people_see_fits_and_holds_nothing_hostile(run: BenchRun, color: bool) -> None:
    plain = rendered(run)
    assert max(map(len, plain.splitlines())) <= 80
    assert not set(plain) & set("\x1b\u202e\ufeff")
    assert "\x1b[31mred" not in render_bench(build_bench_document(run), width=80, color=color)


def test_a_compiler_that_fails_without_a_word() -> None:
    assert "a.cu is not compiled\n" in rendered(replace(NOT_COMPILED, before=failed("a.cu", "")))


def test_times_and_their_names() -> None:
    found = to_json(build_bench_document(RUN))
    assert found["schema"] == "frx_bench_v0"
    assert {"median_ms", "min_ms", "max_ms", "stdev_ms", "runs", "warmup", "source"} <= set(found["before"])
    assert found["before"]["median_ms"] == pytest.approx(12.6)
    assert (found["before"]["min_ms"], found["before"]["runs"], found["before"]["warmup"]) == (12.0, 4, 1)
    assert found["speedup_x"] == pytest.approx(1.0)
    assert found["ci"] == {"ratio_median": 1.0, "low": 0.9, "high": 1.1, "confidence": 0.99, "quads": 2}
    assert found["verdict"] == "no difference shown"
    assert found["kernel_time"]["verdict"] == "faster"
    assert found["kernel_time"]["before"]["median_ms"] == pytest.approx(2.1)
    assert found["order"] == ["before", "after", "after", "before"] * 2
    assert found["outputs"]["agreement"] == "within_tolerance"
    assert (found["ncu_diff"], found["not_run_because"]) == (None, None)


def test_unknown_is_null() -> None:
    found = to_json(build_bench_document(NOT_RUN))
    assert found["before"]["median_ms"] is None
    assert found["before"]["runs"] == found["before"]["warmup"] == 0
    assert [found[name] for name in ("speedup_x", "ci", "verdict", "kernel_time", "outputs")] == [None] * 5
    assert found["before"]["kernels"][0]["registers"] == 255
    unbounded = to_json(build_bench_document(UNBOUNDED))
    assert (unbounded["ci"]["high"], unbounded["outputs"]["largest_absolute"]) == (None, 0.0)


def test_rendered_text() -> None:
    text = rendered(RUN)
    assert text.startswith("NO DIFFERENCE SHOWN  a.cu -> b.cu\n")
    assert "whole programs: 1.000x (99 % interval 0.900x to 1.100x, 2 quads)" in text
    assert "kernels: faster, 2.000x (99 % interval 1.900x to 2.100x, 2 quads)" in text
    assert "before      12.6 ms    12.0 ms    13.2 ms" in text
    assert "launches a run: 10 before, 5 after" in text
    assert "1 number within 1.3e-06 relative and 1e-05" in text
    assert "_Z6kernelPf  255 registers, 3640 bytes of spills" in text
    assert "not known: no launch of after was seen" in rendered(NO_KERNELS)
    assert "The output of before changes from run to run" in rendered(NO_KERNELS)


def test_non_utf8_name_can_be_written() -> None:
    run = replace(NOT_RUN, before=side("a\udcff.cu"), not_run_because="a\udcff.cu: ended")
    assert json.dumps(to_json(build_bench_document(run)), ensure_ascii=False).encode()
    assert rendered(run).encode()


def test_reason_for_not_running_is_shown() -> None:
    assert rendered(NOT_RUN).startswith("NOT RUN  a.cu -> b.cu\n    there is no NVIDIA GPU here\n")
    text = rendered(NOT_COMPILED)
    assert "it needs a main: frx bench runs whole programs" in text
    assert "b.cu(1): error: [31mred[0m[bold]" in text
    assert build_bench_document(NOT_COMPILED).compile_errors.before == NEEDS_MAIN
    assert "[31mred" in rendered(CRASHED)
    assert "DIFFERENT: the text differs, not only numbers in it" in rendered(DIFFERENT)


def test_bounds_that_bound_nothing() -> None:
    text = rendered(UNBOUNDED)
    assert "less than 0.01x to no upper bound" in " ".join(text.split())
    assert "more than 1000x" in text


def test_disagreeing_ratio_of_medians_is_shown() -> None:
    assert "ratio of medians" not in rendered(RUN)
    wall = replace(WALL, ratio_median=1.2, ci_low=1.1, ci_high=1.3)
    assert "1.200x (99 % interval 1.100x to 1.300x, 2 quads); ratio of medians 1.000x" in " ".join(
        rendered(replace(RUN, wall=wall)).split()
    )


def layer(kernel: str, **values: float) -> NcuLayer:
    totals = KernelTotals()
    totals.add(KernelLaunch("0", "1", kernel, "0", "9.0", (1, 1, 1), (64, 1, 1), "a.csv", 2, values))
    return NcuLayer(NcuExport("a.csv"), analyze_kernels(totals.summarize_kernels()))


def test_what_ncu_has_measured_of_both() -> None:
    name = f"scale{HOSTILE}"
    slow = layer(name, duration=2e-3, compute_throughput=20.0, memory_throughput=30.0, achieved_occupancy=20.0)
    fast = layer(name, duration=1e-3, compute_throughput=20.0, memory_throughput=90.0, dram_throughput=90.0)
    document = build_bench_document(RUN, compare_ncu(slow, fast, match_measured(slow, fast)))
    found = json.loads(json.dumps(to_json(document), allow_nan=False))
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(found)
    assert found["ncu_diff"]["kernels"][0]["speedup_x"] == 2.0
    text = render_bench(document, width=80, color=False)
    assert "Nsight Compute, before -> after" in text
    assert "limited by latency -> memory" in text
    assert "occupancy_limited" in text.partition("Resolved in after")[2]
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    refused = build_bench_document(RUN, f"ncu: {HOSTILE}")
    assert "Nsight Compute\n    not known: ncu: [31mred[0m[bold]" in render_bench(refused, width=80, color=False)
    assert to_json(refused)["ncu_diff"] is None
