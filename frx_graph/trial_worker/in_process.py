"""Arms in the process of the program itself, for graphs that cannot travel: the same code, behind the same messages, as
in processes of their own, but without their isolation. A candidate that crashes takes the program with it, and one that
hangs is waited for.

They run in a thread of their own, since a backend is called in the middle of a compilation: torch keeps the state of
that one (tracing, guards, metrics), and what modes are on, by thread, and configuration by context. What belongs to the
process is put back after every answer (`frx_graph.support.process_state`). Dynamo is never reset.
"""

from __future__ import annotations

import contextvars
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch.profiler import ProfilerActivity, profile

from frx_graph.compiler.rewrite_log import RewriteLog
from frx_graph.measure.console_capture import STDERR, captured, not_kineto
from frx_graph.support.process_state import compiling_given_up, process_state_kept
from frx_graph.trial_worker.graph_file import HeldGraph
from frx_graph.trial_worker.worker import TrialArm, answer_to
from frx_graph.trial_worker.workload import Loadable
from frx_graph.trials.arm_messages import Workload
from frx_graph.trials.arm_process import ArmError, Cause, Limits, raised


class InProcessArms:
    """Starts arms for one graph; a context manager that ends their thread."""

    def __init__(self, graph: HeldGraph) -> None:
        self._graph = graph
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="frx-trial")

    def __enter__(self) -> InProcessArms:
        if not _profiler_enabled():
            # Its library says that something is wrong where another thread than the main one is the first to use it.
            with captured(STDERR, not_kineto), profile(activities=[ProfilerActivity.CPU]):
                pass
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def start(self, _: Limits | None = None) -> InProcessArm:
        """One more arm, with a copy of the graph and of its inputs; it has no limits."""
        return InProcessArm(self._graph, self._thread)


class InProcessArm:
    """Answers in the thread of the trial; whoever asks waits."""

    def __init__(self, graph: HeldGraph, thread: ThreadPoolExecutor) -> None:
        self.limits = Limits()
        self._graph = graph
        self._thread = thread
        self._context = contextvars.copy_context()
        self._arm: TrialArm | None = None

    @property
    def pid(self) -> int:
        """Of the program."""
        return os.getpid()

    def ask(self, message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """Its answer. Raises `ArmError` where it has failed, or has taken longer than `seconds`, which nothing can cut
        short."""
        waiting = self._thread.submit(self._context.run, self._answer, message)
        try:
            with compiling_given_up():
                answer, took = waiting.result()
        except BaseException:
            waiting.cancel()
            raise
        if "error" in answer:
            raise raised(answer)
        if took > seconds:
            raise ArmError(Cause.TIMED_OUT, f"an arm took {took:.0f} s instead of {seconds:.0f} to answer")
        return answer

    def stop(self) -> None:
        """Let go of its program."""
        self._arm = None

    def _answer(self, message: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        began = time.monotonic()
        with process_state_kept():
            if self._arm is None:
                self._arm = TrialArm(self._load, RewriteLog(), alone=False)
            answer = dict(answer_to(self._arm, message))
        return answer, time.monotonic() - began

    def _load(self, _: Workload) -> Loadable:
        graph = self._graph.copy()
        return Loadable(graph.model, graph.args, {}, graph.surroundings.step, graph.surroundings.process)
