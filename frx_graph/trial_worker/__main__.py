"""One arm of a trial, in a process of its own: `python -m frx_graph.trial_worker`.

It answers what `frx_graph.trials.arm_messages` says. What the workload prints is output; answers go through pipes.
It is bound to whoever has started it, and has been asked something, before torch is imported, which takes seconds: a
trial that is killed in the middle of that, or interrupted while it starts an arm, leaves none behind.
"""

from __future__ import annotations

from frx_graph.trials.arm_connection import connection


def main() -> None:
    """Answer questions until whoever asks has gone."""
    asked = connection()
    if not asked.comes_question():
        return
    from frx_graph.trial_worker.worker import TrialArm, answer_to

    arm = TrialArm()
    for message in asked:
        asked.answer(answer_to(arm, message))


if __name__ == "__main__":
    main()
