"""How long the loops take that Inductor writes for single operators, timed in a process of their own.

Whatever goes wrong there, the worst that happens is that nothing is known.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from frx_graph.facts.operator_signature import GeneratedCall
from frx_graph.measure.inductor.generated_messages import Answer, CallMessage, Request
from frx_graph.support.supervisor.run import run_program

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
    except (OSError, ValueError) as error:
        return GeneratedTimes(failures=(f"{type(error).__name__}: {error}",))
    known = {call: seconds for group in times for call, seconds in group.items()}
    return GeneratedTimes(known, answer.failures, answer.disturbed)


def _output(worker: Sequence[str], request: bytes, limit_s: float) -> bytes:
    """Return what the process writes. Raises `OSError` if it cannot be started, and `ValueError` if it fails or takes
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
