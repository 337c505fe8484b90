"""Restore the state of the process after another program has run in it."""

from __future__ import annotations

import contextlib
import copy
import random
from collections import Counter
from collections.abc import Iterator

import numpy
import torch
from torch import Tensor

from frx_graph.support.torch_internals import convert_frame, dynamo_utils, get_metrics_log


@contextlib.contextmanager
def preserve_process_state() -> Iterator[None]:
    """Restore the random state and torch's records of compilations after the block.

    State of the thread (gradients, autocast, default device, tracing) and of the context (the configuration of Dynamo
    and Inductor) is not restored: run the other program in its own thread and context.
    """
    with preserve_random_state(), _preserve_compilation_records():
        yield


class RandomGenerators:
    """The states of the random generators that a program on `device` uses: the CPU's and the device's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._states = self._read_states()

    def have_moved(self) -> bool:
        """Return True if random numbers were drawn since."""
        return not all(map(torch.equal, self._states, self._read_states()))

    def restore(self) -> None:
        """Restore the states, so that the same numbers are drawn again."""
        torch.set_rng_state(self._states[0])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(self._states[1], self._device)

    def _read_states(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        return states if self._device.type != "cuda" else [*states, torch.cuda.get_rng_state(self._device)]


@contextlib.contextmanager
def release_compile_lock() -> Iterator[None]:
    """Let another thread compile in the block, by releasing Dynamo's lock, which a backend's thread holds."""
    lock = convert_frame.compile_lock
    times = 0
    # Raised when this thread does not hold it any more.
    with contextlib.suppress(RuntimeError):
        while True:
            lock.release()
            times += 1
    try:
        yield
    finally:
        for _ in range(times):
            lock.acquire()


@contextlib.contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore the random state of torch, Python and NumPy after the block."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
    python, arrays = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)


@contextlib.contextmanager
def _preserve_compilation_records() -> Iterator[None]:
    counters: dict[str, Counter[str]] = dynamo_utils.counters
    counts = copy.deepcopy(dict(counters))
    phases = {name: len(seconds) for name, seconds in dynamo_utils.compilation_time_metrics.items()}
    metrics = get_metrics_log()
    compiled = None if metrics is None else list(metrics)
    try:
        yield
    finally:
        for name in counters.keys() - counts.keys():
            del counters[name]
        for name, count in counts.items():
            counters[name].clear()
            counters[name].update(count)
        timed = dynamo_utils.compilation_time_metrics
        for name in timed.keys() - phases.keys():
            del timed[name]
        # Another thread may be compiling.
        for name, seconds in list(timed.items()):
            del seconds[phases.get(name, 0) :]
        kept = get_metrics_log()
        if kept is not None and compiled is not None:
            kept.clear()
            kept.extend(compiled)
