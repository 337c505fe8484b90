"""Time the loops that Inductor generates for single operators, in a separate process, and cache the times.

A loop takes microseconds, or a scheduler's time slice on a busy machine, so times of a busy machine are not used.
Starting a process that compiles takes seconds, so failures are remembered as long as this process lives.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field

from frx_graph.facts.operator_signature import GeneratedCall
from frx_graph.measure.measurement_cache import (
    get_measured_operators_path,
    make_signature_key,
    read_stored_seconds,
    store_seconds,
)
from frx_graph.support.supervisor.run import run_program

WORKER = (sys.executable or "python", "-m", "frx_graph.measure.inductor.generated_worker")
_START_SECONDS = 60.0
"""Importing Inductor takes about 4 seconds, its tests of instruction sets, once, about 8 (torch 2.15, two cores)."""
_CALL_SECONDS = 5.0
"""Compiling a loop takes 0.4 to 1.3 seconds."""
_NOT_INHERITED = ("TORCH_LOGS", "TORCH_TRACE", "TORCH_COMPILE_DEBUG", "TORCHINDUCTOR_COMPILE_THREADS")
"""Variables that are not inherited: their output is meant for the user's program."""


@dataclass(frozen=True)
class GeneratedTimes:
    """Median seconds of each call; those that could not be timed are missing, `failures` say why. `disturbed` is true
    if other programs used the processors meanwhile."""

    seconds: Mapping[GeneratedCall, float] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    disturbed: bool = False


class Answer(BaseModel):
    """The process's answer: the seconds of each group's calls, None for a group with a call that could not be timed;
    otherwise as in `GeneratedTimes`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: tuple[tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] | None, ...]
    failures: tuple[str, ...]
    disturbed: bool


def time_generated(
    groups: Iterable[Sequence[GeneratedCall]],
    *,
    worker: Sequence[str] = WORKER,
    limit_s: float | None = None,
) -> GeneratedTimes:
    """Time all calls, those of a group in turn, in one process; no process is started for no calls.

    The process has this one's threads, environment and Inductor cache. It is ended with its children after `limit_s`
    seconds, and when this call is interrupted. Never raises for errors in that process.
    """
    asked = list(dict.fromkeys(map(tuple, groups)))
    if not asked:
        return GeneratedTimes()
    limit = _START_SECONDS + _CALL_SECONDS * sum(map(len, asked)) if limit_s is None else limit_s
    try:
        request = pickle.dumps((torch.get_num_threads(), asked))
        answer = Answer.model_validate_json(_run_worker(worker, request, limit))
        pairs = zip(asked, answer.seconds, strict=True)
        times = [dict(zip(group, seconds, strict=True)) for group, seconds in pairs if seconds is not None]
    except (OSError, ValueError, TypeError, pickle.PicklingError) as error:
        return GeneratedTimes(failures=(f"{type(error).__name__}: {error}",))
    known = {call: seconds for group in times for call, seconds in group.items()}
    return GeneratedTimes(known, answer.failures, answer.disturbed)


def _run_worker(worker: Sequence[str], request: bytes, limit_s: float) -> bytes:
    """Return the process's output. Raises `OSError` if it cannot be started, and `ValueError` if it fails or takes
    longer than `limit_s` seconds."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with tempfile.TemporaryFile(prefix="frx-timing-") as asked:
        asked.write(request)
        asked.seek(0)
        ran = run_program(list(worker), limit_seconds=limit_s, environment=environment, stdin=asked)
    if ran.problem is not None:
        raise ValueError(ran.problem)
    return ran.output


Measure = Callable[[Iterable[Sequence[GeneratedCall]]], GeneratedTimes]

_KNOWN: dict[tuple[Path, str], float | None] = {}
"""Seconds by file and key; None for calls that could not be timed."""


def get_generated_seconds(
    groups: Iterable[Sequence[GeneratedCall]],
    device_type: str,
    *,
    directory: Path | None = None,
    measure: Measure = time_generated,
) -> Mapping[GeneratedCall, float]:
    """Return the seconds of each call, cached or timed now. Calls of a group are compared: if one is missing, all are
    measured, and a group with a failure is missing from the result. `directory` replaces `get_cache_directory()`."""
    asked = {group: tuple(map(make_generated_key, group)) for group in dict.fromkeys(map(tuple, groups))}
    if not asked:
        return {}
    path = get_measured_operators_path(device_type, directory)
    stored = read_stored_seconds(path)
    _KNOWN.update(((path, key), stored[key]) for keys in asked.values() for key in keys if key in stored)
    missing = [group for group, keys in asked.items() if any((path, key) not in _KNOWN for key in keys)]
    if missing:
        times = measure(missing)
        seconds = {} if times.disturbed else {make_generated_key(call): s for call, s in times.seconds.items()}
        _KNOWN.update(((path, key), seconds.get(key)) for group in missing for key in asked[group])
        if seconds:
            store_seconds(path, seconds)
    found: dict[GeneratedCall, float] = {}
    for group, keys in asked.items():
        taken = [s for key in keys if (s := _KNOWN[path, key]) is not None]
        if len(taken) == len(group):
            found.update(zip(group, taken, strict=True))
    return found


def make_generated_key(call: GeneratedCall) -> str:
    """Return the call as text, different from the key of any kernel that eager runs."""
    results = ", ".join(f"{read.position}|{'x'.join(map(str, read.strides))}" for read in call.results)
    return f"inductor {call.times} x {make_signature_key(call.signature)} -> {results}"
