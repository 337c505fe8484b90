"""One arm of a trial, in a process of its own: `python -m frx_graph.trial_arm`.

It answers what `frx_graph.trials.arm_messages` says. What the workload prints is output; answers go through pipes.
"""

from __future__ import annotations

from frx_graph.answering_arm import TrialArm, answer_to
from frx_graph.trials.arm_process import connection


def main() -> None:
    """Answer questions until whoever asks has gone."""
    asked = connection()
    arm = TrialArm()
    for message in asked:
        asked.answer(answer_to(arm, message))


if __name__ == "__main__":
    main()
