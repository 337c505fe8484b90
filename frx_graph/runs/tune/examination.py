"""Run a configuration once, alone, from start to end, and describe its run."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

from frx_graph.analyze.run import analyze_files
from frx_graph.analyzers.run.steps import Scope
from frx_graph.analyzers.timeline.labels import INSUFFICIENT
from frx_graph.errors import EvidenceError, FrxError
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle import open_bundle
from frx_graph.evidence.run.bundle_layout import GPU_METRICS
from frx_graph.evidence.run.device_samples import read_device_samples
from frx_graph.measure.machine.control_groups import get_available_memory
from frx_graph.reports.render.quantities import drop_non_finite
from frx_graph.runs.collect.sampling import DEVICE_HEADER, make_device_sampler
from frx_graph.runs.tune.live_arm import ArmEndedError, ArmStart, LiveArm
from frx_graph.runs.tune.step_stream import compute_step_seconds, sum_samples
from frx_graph.support.atomic_file import write_atomically
from frx_graph.trials.configuration_trial import RunSeen
from frx_graph.trials.schedule import Arm

_ENDING_SECONDS = 10.0
"""Seconds that a program gets to end by itself after its steps. A program that ignores the number of steps would run
for hours."""
_OUTPUT = "output"
"""Prefix of metrics that describe the model's outputs."""
Diagnose = Callable[[Path], str | None]


def examine_run(
    start: ArmStart, folder: Path, *, warmup: int, steps: int, sample_seconds: float, diagnose: Diagnose
) -> RunSeen:
    """Run it for `warmup` and `steps`. Raises `TrialError` if it cannot be started."""
    wanted = warmup + steps + 1
    peak = 0
    sampled = enough_at = 0.0
    before = get_available_memory()

    with (
        sample_devices(folder, sample_seconds, start.environment),
        LiveArm(Arm.CANDIDATE, start, folder) as living,
    ):

        def is_over() -> bool:
            nonlocal peak, sampled, enough_at
            now = time.monotonic()
            if now - sampled >= sample_seconds:
                sampled, peak = now, max(peak, living.workload.measure_memory())
            if len(living.steps) >= wanted and not enough_at:
                enough_at = now
            return bool(enough_at) and now - enough_at >= _ENDING_SECONDS

        ending = "it was ended after its steps, since it did not end by itself: see max_steps in docs/tune.md"
        in_time = True
        try:
            living.run_until(is_over)
        except ArmEndedError as ended:
            in_time, ending = ended.exit_code is not None, ended.detail
        exit_code = living.workload.exit_code if living.workload.has_ended() else None
        stream = living.stream
    busy, device_ratio = read_device_figures(folder)
    whole = before if before is not None else psutil.virtual_memory().total
    ratios = [ratio for ratio in (peak / whole if peak and whole else None, device_ratio) if ratio is not None]
    ended_steps = living.steps[: wanted if exit_code is None else None]
    counted = ended_steps[max(0, warmup - 1) :]
    return RunSeen(
        exit_code=exit_code,
        ending=ending,
        in_time=in_time,
        steps=len(ended_steps),
        step_seconds=compute_step_seconds(counted),
        samples=sum_samples(counted[1:]),
        batch_size=next((step.samples for step in ended_steps if step.samples), None),
        losses=tuple(drop_non_finite(step.loss) for step in ended_steps if step.loss is not None),
        outputs=tuple(
            (name, drop_non_finite(value))
            for name, value in (ended_steps[-1].metrics if ended_steps else ())
            if name.startswith(_OUTPUT)
        ),
        workers=stream.workers,
        batch_layouts=len(stream.layouts),
        peak_bytes=peak or None,
        memory_ratio=max(ratios, default=None),
        device_busy_percent=busy,
        bottleneck=diagnose(folder),
    )


def find_bottleneck(folder: Path) -> str | None:
    """Return the label of a run's diagnosis, for the steady state if the run reached one; None if no bottleneck is
    known. The summary stays in the folder."""
    try:
        with open_bundle(folder) as bundle:
            result = analyze_files(bundle).result
    except (FrxError, OSError):
        # The tune's measurements do not depend on it.
        return None
    path = folder / bundle_layout.SUMMARY
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(result.model_dump(mode="json", by_alias=True), indent=2) + "\n")
    label = result.get_scope(Scope.AUTO).diagnosis.user_facing_bottleneck
    return None if label == INSUFFICIENT else label


@contextlib.contextmanager
def sample_devices(folder: Path, interval_seconds: float, environment: Mapping[str, str]) -> Iterator[None]:
    """Sample the devices, if there are any, into `gpu_metrics.csv` in `folder` while the block runs."""
    path = folder / GPU_METRICS
    sampler = make_device_sampler(path, interval_seconds, environment)
    if sampler is None:
        yield
        return
    path.write_bytes(DEVICE_HEADER)
    sampler.start()
    try:
        yield
    finally:
        sampler.stop()


def read_device_figures(folder: Path) -> tuple[float | None, float | None]:
    """Return the mean utilisation of the devices, 0 to 100, and the largest share of a device's memory in use; None if
    it was not sampled."""
    try:
        samples = read_device_samples(folder / GPU_METRICS)
    except (EvidenceError, FileNotFoundError):
        return None, None
    busy = [sample.busy_pct for sample in samples if sample.busy_pct is not None]
    ratios = [
        sample.memory_used / sample.memory_total
        for sample in samples
        if sample.memory_used is not None and sample.memory_total
    ]
    return statistics.fmean(busy) if busy else None, max(ratios, default=None)
