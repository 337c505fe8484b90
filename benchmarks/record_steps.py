"""A trace of a machine's own noise: the times of a step of four convolutions, again and again for 25 s."""

from __future__ import annotations

import itertools
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

SECONDS = 25.0
STEP = "four times torch.nn.Conv2d(32, 32, 3, padding=1) on 8x32x56x56 float32, without gradients, one thread"


def step_seconds(step: Callable[[], object], duration: float, now: Callable[[], float]) -> list[float]:
    """The time of every step that begins within `duration` seconds."""
    marks = [now()]
    while marks[-1] - marks[0] < duration:
        step()
        marks.append(now())
    return [end - begin for begin, end in itertools.pairwise(marks)]


def record(path: Path, duration: float = SECONDS) -> None:
    """Write the trace and what it was taken on to `path`."""
    load, threads = os.getloadavg()[0], torch.get_num_threads()
    torch.manual_seed(0)
    images, convolution = torch.randn(8, 32, 56, 56), torch.nn.Conv2d(32, 32, 3, padding=1)

    def step() -> None:
        for _ in range(4):
            convolution(images)

    torch.set_num_threads(1)  # else every step waits for the slowest thread, and the trace is of the scheduler
    try:
        with torch.inference_mode():
            step_seconds(step, duration / 25, time.perf_counter)
            times = step_seconds(step, duration, time.perf_counter)
    finally:
        torch.set_num_threads(threads)
    document = {
        "step": STEP,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "logical_cpus": os.cpu_count(),
        "load_average_before": round(load, 2),
        "seconds": [float(f"{seconds:.4g}") for seconds in times],
    }
    path.write_text(json.dumps(document) + "\n")
