"""Run one arm of a trial in its own process: `python -m frx_graph.trial_worker`.

It answers the messages of `frx_graph.trials.arm_messages` through pipes, separate from the workload's output. It ends
with the process that started it. That link is set up before torch is imported, which takes seconds, so a trial that is
killed or interrupted meanwhile leaves no arm behind.
"""

from __future__ import annotations

from frx_graph.trials.arm_connection import connect_to_parent


def main() -> None:
    """Answer messages until the other end of the pipe is closed."""
    asked = connect_to_parent()
    if not asked.wait_for_question():
        return
    from frx_graph.trial_worker.worker import TrialArm, handle_request

    arm = TrialArm()
    for message in asked:
        asked.answer(handle_request(arm, message))


if __name__ == "__main__":
    main()
