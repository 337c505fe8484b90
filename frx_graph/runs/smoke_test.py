"""Collect, bundle and analyse a run that is known to wait for its input.

The workload only writes a synthetic profiler's trace, so it needs neither a GPU nor torch. The test checks this
installation, not the machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frx_graph.analyze.run import analyze_bundle
from frx_graph.errors import FrxError, summarize_error
from frx_graph.evidence.run import bundle_layout
from frx_graph.runs.collect.collection import collect_run
from frx_graph.runs.collect.run_settings import RunSettings
from frx_graph.support.supervisor.process import unwind_on_termination

EXPECTED: Final = "input_bound"
WAITING: Final = 0.6
"""Share of each step of the trace that waits."""
_STEPS = 6
_STEP_US, _COMPUTED_US = 100_000, 30_000
_LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_RUN_ID = "run-smoke-test"
_WRITER = "import pathlib, sys; pathlib.Path(sys.argv[2]).write_bytes(pathlib.Path(sys.argv[1]).read_bytes())"
_NAMES = (
    "write synthetic profiler trace",
    "create run directory",
    "generate derived/summary.json",
    "manifest.json present",
    "zip bundle created",
    f"primary_bottleneck == {EXPECTED}",
    "waiting share as written",
    "recommendations present",
    "zip analyses as the directory",
    "no unexpected warnings",
)


@dataclass(frozen=True, slots=True)
class SmokeCheck:
    """One expected result. `problem` describes a different result; None: the check passed."""

    name: str
    problem: str | None = None


def run_smoke_checks() -> tuple[SmokeCheck, ...]:
    """Run all checks in a temporary folder. Checks behind one that failed, which cannot be made, fail too."""
    with unwind_on_termination(), tempfile.TemporaryDirectory(prefix="frx-smoke-test-") as folder:
        found: list[SmokeCheck] = []
        try:
            # What was checked before an error stays.
            found.extend(_run_checks(Path(folder)))
        except (FrxError, OSError) as error:
            found.append(SmokeCheck(_NAMES[len(found)], summarize_error(error)))
    return (*found, *(SmokeCheck(name, "not reached") for name in _NAMES[len(found) :]))


def _run_checks(folder: Path) -> Iterator[SmokeCheck]:
    names = iter(_NAMES)

    def check(fine: bool, problem: str) -> SmokeCheck:
        return SmokeCheck(next(names), None if fine else problem)

    trace, artifacts = folder / "written.json", folder / "artifacts"
    trace.write_text(json.dumps(make_synthetic_trace()))
    artifacts.mkdir()
    yield check(trace.stat().st_size > 0, "it is empty")
    settings = RunSettings(
        command=(sys.executable, "-c", _WRITER, str(trace), str(artifacts / bundle_layout.PROFILER_TRACE.name)),
        run_id=_RUN_ID,
        out=folder / "runs",
        artifacts=(artifacts,),
    )
    collected = collect_run(settings, stdout=None, stderr=None)
    run, archive = collected.folder, collected.archive
    missing = [str(part) for part in (bundle_layout.PROFILER, bundle_layout.METADATA) if not (run / part).exists()]
    yield check(collected.end.exit_code == 0 and not missing, f"exit code {collected.end.exit_code}, without {missing}")
    yield check((run / bundle_layout.SUMMARY).is_file(), "it is not there")
    yield check((run / bundle_layout.MANIFEST).is_file(), "it is not there")
    yield check(archive is not None and archive.is_file(), "it is not there")
    result = analyze_bundle(run).document.result
    found = result.steady_state
    told, share = found.diagnosis.user_facing_bottleneck, found.run_summary.loader_wait_share
    yield check(told == EXPECTED, f"it is {told}")
    yield check(share is not None and abs(share - WAITING) < 1e-9, f"{share} and not {WAITING}")
    yield check(bool(found.diagnosis.recommendations), "there is none")
    zipped = None if archive is None else analyze_bundle(archive).document.result
    yield check(zipped == result, "it says something else")
    yield check(not collected.metadata.warnings, "; ".join(collected.metadata.warnings))


def make_synthetic_trace() -> dict[str, Any]:
    """Return a trace of steps that wait for their batch 60 % of the time, and compute for 30 %."""
    host, device = {"pid": 1, "tid": 1}, {"pid": 0, "tid": 7}
    events: list[dict[str, Any]] = []

    def add_event(category: str, name: str, start: int, length: int, where: dict[str, int], **args: object) -> None:
        events.append({"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "args": args, **where})

    waiting = round(WAITING * _STEP_US)
    for number in range(_STEPS):
        begin, correlation = number * _STEP_US, number + 1
        launch = begin + waiting
        add_event("user_annotation", f"ProfilerStep#{number}", begin, _STEP_US, host)
        add_event("user_annotation", _LOADER, begin, waiting, host)
        add_event("cpu_op", "aten::mm", launch, 50, host)
        add_event("cuda_runtime", "cudaLaunchKernel", launch + 10, 10, host, correlation=correlation)
        add_event("kernel", "gemm", launch + 30, _COMPUTED_US, device, device=0, stream=7, correlation=correlation)
    return {"deviceProperties": [{"id": 0, "name": "none"}], "traceEvents": events}
