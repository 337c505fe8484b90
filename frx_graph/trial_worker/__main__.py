"""Run one arm of a trial in its own process: `python -m frx_graph.trial_worker`.

It answers the messages of `frx_graph.trials.arm_messages` through pipes, separate from the workload's output. It ends
with the process that started it. That link is set up before torch is imported, which takes seconds, so a trial that is
killed or interrupted meanwhile leaves no arm behind.

With the id of the process that starts it, and a descriptor, it imports what arms need, and forks them
(`frx_graph.support.supervisor.fork_server`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from frx_graph.support.supervisor.supervised import end_with_parent
from frx_graph.trials.arm_connection import ArmConnection, connect, connect_to_parent


def main(arguments: Sequence[str] = ()) -> None:
    """Answer messages until the other end of the pipe is closed."""
    asked = fork_arms(*map(int, arguments)) if arguments else connect_to_parent()
    if asked is None or not asked.wait_for_question():
        return
    from frx_graph.trial_worker.worker import TrialArm, handle_request

    arm = TrialArm()
    for message in asked:
        asked.answer(handle_request(arm, message))


def fork_arms(parent: int, descriptor: int) -> ArmConnection | None:
    """Fork arms until `parent` closes the connection; then return None. In an arm, return its own connection."""
    end_with_parent(parent)
    import gc

    import frx_graph.trial_worker.worker  # noqa: F401
    from frx_graph.support.supervisor.fork_server import serve_forks
    from frx_graph.support.torch_internals import warm_up_compiler

    warm_up_compiler()

    # A collection in an arm would write to all objects, and so copy the pages that arms share.
    gc.collect()
    gc.freeze()
    server = os.getpid()
    pipes = serve_forks(descriptor)
    return None if pipes is None else connect(*pipes, server)


if __name__ == "__main__":
    main(sys.argv[1:])
