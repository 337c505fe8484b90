"""Run the arms of a trial in the program's own process, for graphs that cannot be written to a file.

Nothing isolates the arms: a candidate that crashes ends the program, and one that hangs blocks it. They run in a
separate thread, since a backend is called during a compilation, whose state torch keeps by thread and context. The
state of the process is restored after every answer (`frx_graph.support.process_state`). Dynamo is never reset.
"""

from __future__ import annotations

import contextvars
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch.profiler import ProfilerActivity, profile

from frx_graph.compiler.rewrite_log import RewriteLog
from frx_graph.measure.console_capture import STDERR, capture_output, drop_kineto_chatter
from frx_graph.support.process_state import preserve_process_state, release_compile_lock
from frx_graph.support.torch_internals import is_profiler_enabled
from frx_graph.trial_worker.graph_file import HeldGraph
from frx_graph.trial_worker.worker import TrialArm, handle_request
from frx_graph.trial_worker.workload import LoadedWorkload
from frx_graph.trials.arm_messages import Workload
from frx_graph.trials.arm_process import ArmError, Cause, Limits, make_arm_error


class InProcessArms:
    """Starts arms for one graph; a context manager that ends their thread."""

    def __init__(self, graph: HeldGraph) -> None:
        self._graph = graph
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="frx-trial")

    def __enter__(self) -> InProcessArms:
        if not is_profiler_enabled():
            # Kineto prints errors if another thread than the main one is the first to use it.
            with capture_output(STDERR, drop_kineto_chatter), profile(activities=[ProfilerActivity.CPU]):
                pass
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def start(self, _: Limits | None = None) -> InProcessArm:
        """Return one more arm, with copies of the graph and the inputs, and without limits."""
        return InProcessArm(self._graph, self._thread)


class InProcessArm:
    """Answers in the thread of the trial; the caller waits."""

    def __init__(self, graph: HeldGraph, thread: ThreadPoolExecutor) -> None:
        self.limits = Limits()
        self._graph = graph
        self._thread = thread
        self._context = contextvars.copy_context()
        self._arm: TrialArm | None = None

    @property
    def pid(self) -> int:
        """The process id of the program."""
        return os.getpid()

    def begin(self, message: Mapping[str, Any]) -> None:
        """Do nothing: the arms share a thread."""

    def ask(self, message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """Return the answer. Raises `ArmError` if it failed, or took longer than `seconds`; nothing cuts it short."""
        waiting = self._thread.submit(self._context.run, self._answer, message)
        try:
            with release_compile_lock():
                answer, took = waiting.result()
        except BaseException:
            waiting.cancel()
            raise
        if "error" in answer:
            raise make_arm_error(answer)
        if took > seconds:
            raise ArmError(Cause.TIMED_OUT, f"an arm took {took:.0f} s instead of {seconds:.0f} to answer")
        return answer

    def stop(self) -> None:
        """Release the program."""
        self._arm = None

    def _answer(self, message: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        began = time.monotonic()
        with preserve_process_state():
            if self._arm is None:
                self._arm = TrialArm(self._load, RewriteLog(), alone=False)
            answer = dict(handle_request(self._arm, message))
        return answer, time.monotonic() - began

    def _load(self, _: Workload) -> LoadedWorkload:
        graph = self._graph.copy()
        return LoadedWorkload(graph.model, graph.args, {}, graph.surroundings.step, graph.surroundings.process)
