"""How long the loops take that Inductor writes for single operators, timed in a process of their own.

Whatever goes wrong there, the worst that happens is that nothing is known.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from pydantic import ValidationError

from frx_graph.facts.generated_call import GeneratedCall
from frx_graph.measure.inductor.generated_messages import Answer, CallMessage, Request

WORKER = (sys.executable or "python", "-m", "frx_graph.measure.inductor.generated_worker")
_START_SECONDS = 60.0
"""Importing Inductor takes about 4 seconds, its precompiled header, once, about 10 (torch 2.15, two cores)."""
_CALL_SECONDS = 5.0
"""Compiling a loop takes 0.4 to 1.3 seconds."""
_NOT_INHERITED = ("TORCH_LOGS", "TORCH_TRACE", "TORCH_COMPILE_DEBUG", "TORCHINDUCTOR_COMPILE_THREADS")
"""What the user has asked to be told of is the user's program."""


@dataclass(frozen=True)
class GeneratedTimes:
    """Median seconds of each call; those that could not be timed are missing, `failures` say why. `disturbed` is true
    where other programs held the processors meanwhile."""

    seconds: Mapping[GeneratedCall, float] = field(default_factory=lambda: MappingProxyType({}))
    failures: tuple[str, ...] = ()
    disturbed: bool = False


def time_generated(
    groups: Iterable[Sequence[GeneratedCall]],
    *,
    worker: Sequence[str] = WORKER,
    limit_s: float | None = None,
) -> GeneratedTimes:
    """Time all calls, those of one group in turn, in one process for all of them; none is started for no calls.

    The process runs with this one's threads, its environment and so its Inductor cache. It is ended with all that it
    has started after `limit_s` seconds, and when this call is interrupted. Never raises for what happens in there.
    """
    asked: list[tuple[GeneratedCall, ...]] = []
    messages: list[tuple[CallMessage, ...]] = []
    for group in dict.fromkeys(map(tuple, groups)):
        with contextlib.suppress(TypeError):
            messages.append(tuple(CallMessage.of(call) for call in group))
            asked.append(group)
    if not asked:
        return GeneratedTimes()
    request = Request(threads=torch.get_num_threads(), groups=tuple(messages))
    limit = _START_SECONDS + _CALL_SECONDS * sum(map(len, asked)) if limit_s is None else limit_s
    try:
        answer = Answer.model_validate_json(_output(worker, request.model_dump_json().encode(), limit))
        pairs = zip(asked, answer.seconds, strict=True)
        times = [dict(zip(group, seconds, strict=True)) for group, seconds in pairs if seconds is not None]
    except (OSError, subprocess.SubprocessError, ValidationError, ValueError) as error:
        return GeneratedTimes(failures=(f"{type(error).__name__}: {error}",))
    known = {call: seconds for group in times for call, seconds in group.items()}
    return GeneratedTimes(known, answer.failures, answer.disturbed)


def _output(worker: Sequence[str], request: bytes, limit_s: float) -> bytes:
    """What the process writes. Raises `OSError` or `SubprocessError` where it cannot be started, fails or takes longer
    than `limit_s` seconds."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        list(worker),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        # A group of its own can be ended whole, the C++ compilers that it runs included.
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(request, timeout=limit_s)
    except BaseException:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, list(worker))
    return output
