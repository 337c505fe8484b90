"""Run one attempt at a job on a cluster's node, in a separate process, and return its answer.

The cluster's worker runs this. It does not import torch, and only waits: a fresh process measures, as on the user's
machine. That process does not inherit the variables that Ray sets for its workers, such as `OMP_NUM_THREADS`. It gets
the requesting process's variables that affect kernels and threads.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import hashlib
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import frx_graph.trials
from frx_graph.compiler.code_fingerprint import compute_code_hash
from frx_graph.errors import summarize_error
from frx_graph.measure.machine.processor_state import read_siblings
from frx_graph.support.supervisor.lines import OutputTail
from frx_graph.support.supervisor.process import extend_pythonpath, supervise, wait_for_exit
from frx_graph.trials.decisive_variables import select_decisive_variables

_POLL_SECONDS = 0.2
"""Seconds between polls. Ray cancels a task by an exception, which cannot arrive during a system call."""
_UNWINDING_SECONDS = 10.0
"""Seconds for a trial to end its arms and remove its folders."""
_CHUNK = 2**16
_RAYS_OWN = frozenset({"OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"})
"""Variables that Ray sets in a worker, and that the user has not asked for."""
_SHORT_OF = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The node may have enough of these a moment later."""


@dataclass(frozen=True, slots=True)
class ProcessorPart:
    """The part `number`, from 0, of `parts`. Each has as many processors as the others, so that they are alike; no two
    share one, unless there are fewer processors than parts."""

    number: int
    parts: int

    def select_processors(
        self, usable: Collection[int], core: Callable[[int], Collection[int]] = read_siblings
    ) -> frozenset[int]:
        """Return the part's processors, which are neighbours. Those of one `core` stay together."""
        ordered = sorted(usable, key=lambda processor: (min(core(processor)), processor))
        size = max(1, len(ordered) // self.parts)
        begin = self.number * size % len(ordered)
        return frozenset(ordered[begin : begin + size])

    def pin_process(self) -> None:
        """Pin this process, and what it starts, to its processors, if the system can."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.select_processors(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class Task:
    """The task that a node receives."""

    attempt: str
    job: bytes
    """Pickled."""
    code: str
    """The asking process's `hash_trial_code`: a node with other code may not decide for it."""
    folder: str | None
    """Folder to run in; None: the worker's, to which Ray has unpacked the user's folder."""
    variables: tuple[tuple[str, str], ...]
    """All variables of the asking process that decide kernels, threads or memory. They replace the node's own."""
    environment: str | None = None
    """The fingerprint of the one environment that it may run in; None: any."""
    part: ProcessorPart | None = None
    """The processors that the task uses exclusively; None: all that the node's programs may use."""
    gpus: bool = False
    """True if the task uses a GPU exclusively; it sees no others."""


class Ending(enum.StrEnum):
    """The end of an attempt."""

    RETURNED = "returned"
    FAILED = "failed"
    """The job failed, and would fail on every node: `text` and `hint` say why."""
    UNFIT = "unfit"
    """The attempt did not begin, because of this node."""
    LOST = "lost"
    """The process ended without an answer."""
    BROKEN = "broken"
    """A defect of frx-graph; `text` is the traceback."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of an attempt. `value` is the pickled result of the job."""

    attempt: str
    ending: Ending
    text: str = ""
    hint: str = ""
    value: bytes = b""


def run_attempt(task: Task) -> Answer:
    """Run the attempt. An interrupt, too, leaves no process behind."""
    if task.folder is not None and not Path(task.folder).is_dir():
        return Answer(task.attempt, Ending.UNFIT, f"it has no folder {task.folder}", "--working-dir sends yours")
    try:
        return _run_process(task)
    except OSError as error:
        if error.errno not in _SHORT_OF:
            raise
        return Answer(task.attempt, Ending.LOST, f"its process cannot be started: {summarize_error(error)}")


def _run_process(task: Task) -> Answer:
    with tempfile.TemporaryFile() as given:
        pickle.dump(task, given)
        given.seek(0)
        with supervise(
            [sys.executable, "-m", "frx_graph.engines.attempt_process", str(os.getpid())],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            environment=_build_environment(task),
            folder=task.folder,
            # It has arms to end.
            stop_signal=signal.SIGTERM,
            patience=_UNWINDING_SECONDS,
        ) as process:
            assert process.stderr is not None
            output = OutputTail(process.stderr)
            answer = _read_answer(process)
            # The answer is valid even if the process does not end by itself.
            wait_for_exit(process, _UNWINDING_SECONDS)
            output.join()
        # A part of a pickle may raise anything: the process ended while it wrote.
        with contextlib.suppress(Exception):
            found = pickle.loads(answer)
            if isinstance(found, Answer):
                return found
        code = process.returncode
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        last = output.get_tail().strip().splitlines()[-1:]
        return Answer(task.attempt, Ending.LOST, ": ".join((f"its process {ended}", *last)))


def _read_answer(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    ready = select.poll()
    ready.register(process.stdout, select.POLLIN)
    found = b""
    while True:
        if ready.poll(1000 * _POLL_SECONDS):
            chunk = process.stdout.read(_CHUNK)
            if not chunk:
                return found
            found += chunk


def _build_environment(task: Task) -> Mapping[str, str]:
    decisive = {name for name, _ in select_decisive_variables(os.environ)}
    own = {name: value for name, value in os.environ.items() if name not in _RAYS_OWN | decisive}
    # Ray hides the GPUs of other tasks only from tasks that hold some.
    hidden = {} if task.gpus else {"CUDA_VISIBLE_DEVICES": ""}
    return {**own, **dict(task.variables), **hidden, **extend_pythonpath(own)}


def hash_trial_code() -> str:
    """Return sixteen hexadecimal digits that identify the code that decides trials, the same on all machines."""
    digest = hashlib.sha256(compute_code_hash().encode())
    for path in sorted(Path(frx_graph.trials.__path__[0]).glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
