"""Run one attempt's job in a separate process, `python -m frx_graph.engines.attempt_process`.

The process reads a task, runs it as the local engine does, and answers. It ends with the worker that started it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import signal
import sys
import traceback

from frx_graph.engines.attempt import Answer, Ending, Task, hash_trial_code
from frx_graph.errors import FrxError
from frx_graph.support.supervisor.process import unwind_on_termination
from frx_graph.support.supervisor.supervised import claim_stdout, end_with_parent


def run_attempt_process(parent: int) -> None:
    """Read the task from standard input, and write the answer to standard output."""
    # Not killed, so that it can end its arms and remove its folders.
    end_with_parent(parent, signal.SIGTERM)
    # Ray's workers run at a lower priority (`RAY_worker_niceness`, 15), so other programs there would be
    # measured, too. Without the permission it stays.
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with claim_stdout() as pipe:
        task: Task = pickle.load(sys.stdin.buffer)
        # Before torch is imported, which counts them to know how many threads it wants.
        if task.part is not None:
            task.part.pin_process()
        with unwind_on_termination():
            answer = _answer_task(task)
        # The worker may have gone.
        with contextlib.suppress(BrokenPipeError):
            pickle.dump(answer, pipe)


def _answer_task(task: Task) -> Answer:
    try:
        # The measurements of an unfit node would not be comparable.
        if hash_trial_code() != task.code:
            unfit = "it has other code of frx-graph"
            return Answer(task.attempt, Ending.UNFIT, unfit, "install the same on all nodes")
        if task.environment is not None and hash_node_environment() != task.environment:
            return Answer(task.attempt, Ending.UNFIT, "its environment is another than the baseline's")
        job = pickle.loads(task.job)
        return Answer(task.attempt, Ending.RETURNED, value=pickle.dumps(job(lambda _: None)))
    except FrxError as error:
        return Answer(task.attempt, Ending.FAILED, error.message, error.hint)
    except Exception:  # noqa: BLE001 - reported by the asking process
        return Answer(task.attempt, Ending.BROKEN, traceback.format_exc())


def hash_node_environment() -> str:
    """Return sixteen hexadecimal digits for this node's processor, versions, settings and GPUs: with the same, nodes
    are comparable. CUDA is not initialised, which would take memory of the measured GPU."""
    # These import torch, which counts the processors that `ProcessorPart.take` leaves.
    import torch

    from frx_graph.compiler.code_fingerprint import compute_environment_key
    from frx_graph.measure.machine.device_state import list_gpu_names
    from frx_graph.trials.environment import read_trial_setup

    setup = compute_environment_key(read_trial_setup(torch.device("cpu")))
    return hashlib.sha256(" ".join((setup, *list_gpu_names())).encode()).hexdigest()[:16]


if __name__ == "__main__":
    run_attempt_process(int(sys.argv[1]))
