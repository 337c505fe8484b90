"""The process that an attempt at a job runs in, `python -m frx_graph.engines.attempt_process`: it reads a task, runs
its job as the local engine does, and answers. It ends with the worker that has started it, whatever ends that."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import traceback

from frx_graph.engines.attempt import Answer, Ending, Task
from frx_graph.engines.trying_code import trying_code_hash
from frx_graph.errors import FrxError
from frx_graph.support.supervisor.process import cleaned_up_when_terminated
from frx_graph.support.supervisor.supervised import claim_stdout, end_with_parent


def main(parent: int) -> None:
    """Standard input is the task; the answer goes to standard output."""
    # Not killed: it has arms, and folders, to leave in order.
    end_with_parent(parent, signal.SIGTERM)
    # Ray's workers run at a lower priority (`RAY_worker_niceness`, 15), so that whatever else runs there would be
    # measured, too. Whoever may not raise it has started the node with another one, or lives with that.
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with claim_stdout() as pipe:
        task: Task = pickle.load(sys.stdin.buffer)
        # Before torch is imported, which counts them to know how many threads it wants.
        if task.part is not None:
            task.part.take()
        with cleaned_up_when_terminated():
            answer = _answered(task)
        # Whoever has gone does not wait for it.
        with contextlib.suppress(BrokenPipeError):
            pickle.dump(answer, pipe)


def _answered(task: Task) -> Answer:
    try:
        if (unfit := _unfit(task)) is not None:
            return unfit
        job = pickle.loads(task.job)
        return Answer(task.attempt, Ending.RETURNED, value=pickle.dumps(job(lambda _: None)))
    except FrxError as error:
        return Answer(task.attempt, Ending.FAILED, error.message, error.hint)
    except Exception:  # noqa: BLE001 - said where it was asked for
        return Answer(task.attempt, Ending.BROKEN, traceback.format_exc())


def _unfit(task: Task) -> Answer | None:
    """Where what is measured here would be about something else."""
    if trying_code_hash() != task.code:
        return Answer(task.attempt, Ending.UNFIT, "it has other code of frx-graph", "install the same on all nodes")
    if task.environment is not None:
        # It imports torch.
        from frx_graph.engines.node_environment import node_environment

        if node_environment() != task.environment:
            return Answer(task.attempt, Ending.UNFIT, "its environment is another than the baseline's")
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]))
