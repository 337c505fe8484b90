"""One whole run of a configuration, alone, from its start to its end: does it work, and what is it like?"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from frx_graph.measure.machine.control_groups import available_memory
from frx_graph.reports.render.quantities import finite
from frx_graph.runs.tune.live_arm import ArmEndedError, ArmStart, LiveArm, ended_how
from frx_graph.runs.tune.step_stream import EndedStep
from frx_graph.runs.tune.watched_devices import device_figures, devices_sampled
from frx_graph.trials.configuration_trial import RunSeen
from frx_graph.trials.schedule import Arm

_ENDING_SECONDS = 10.0
"""That a program which has made its steps is given to end by itself. One that does not look at how many it should make
would go on for hours."""
_OUTPUT = "output"
"""Metrics whose names begin so are of the model's outputs."""
Diagnose = Callable[[Path], str | None]


def examine(
    start: ArmStart, folder: Path, *, warmup: int, steps: int, sample_seconds: float, diagnose: Diagnose
) -> RunSeen:
    """Run it for `warmup` and `steps`. Raises `TrialError` where it cannot be started."""
    wanted = warmup + steps + 1
    peak = 0
    sampled = enough_at = 0.0
    before = available_memory()

    with (
        devices_sampled(folder, sample_seconds, start.environment),
        LiveArm(Arm.CANDIDATE, start, folder) as living,
    ):

        def over() -> bool:
            nonlocal peak, sampled, enough_at
            now = time.monotonic()
            if now - sampled >= sample_seconds:
                sampled, peak = now, max(peak, living.memory_bytes())
            if len(living.steps) >= wanted and not enough_at:
                enough_at = now
            return bool(enough_at) and now - enough_at >= _ENDING_SECONDS

        ending = "it was ended after its steps, as it did not end by itself: see max_steps in docs/tune.md"
        in_time = True
        try:
            living.run_on(over)
        except ArmEndedError as ended:
            in_time = ended.exit_code is not None
            ending = ended.detail if not in_time else ended_how(ended.exit_code, living.steps)
        exit_code = living.ended()
        stream = living.stream
    busy, device_ratio = device_figures(folder)
    whole = before if before is not None else psutil.virtual_memory().total
    ratios = [ratio for ratio in (peak / whole if peak and whole else None, device_ratio) if ratio is not None]
    return _seen(
        living.steps[: wanted if exit_code is None else None],
        warmup=warmup,
        exit_code=exit_code,
        ending=ending,
        in_time=in_time,
        workers=stream.workers,
        batch_layouts=len(stream.layouts),
        peak=peak or None,
        memory_ratio=max(ratios, default=None),
        device_busy_percent=busy,
        bottleneck=diagnose(folder),
    )


def _seen(
    steps: Sequence[EndedStep],
    *,
    warmup: int,
    exit_code: int | None,
    ending: str,
    in_time: bool,
    workers: int | None,
    batch_layouts: int,
    peak: int | None,
    memory_ratio: float | None,
    device_busy_percent: float | None,
    bottleneck: str | None,
) -> RunSeen:
    counted = steps[max(0, warmup - 1) :]
    samples = [step.samples for step in counted[1:]]
    told = [count for count in samples if count]
    return RunSeen(
        exit_code=exit_code,
        ending=ending,
        in_time=in_time,
        steps=len(steps),
        step_seconds=tuple(max(after.end_ns - before.end_ns, 1) / 1e9 for before, after in itertools.pairwise(counted)),
        samples=sum(told) if told and len(told) == len(samples) else None,
        batch_size=next((step.samples for step in steps if step.samples), None),
        losses=tuple(finite(step.loss) for step in steps if step.loss is not None),
        outputs=tuple(
            (name, finite(value)) for name, value in (steps[-1].metrics if steps else ()) if name.startswith(_OUTPUT)
        ),
        workers=workers,
        batch_layouts=batch_layouts,
        peak_bytes=peak,
        memory_ratio=memory_ratio,
        device_busy_percent=device_busy_percent,
        bottleneck=bottleneck,
    )
