"""One arm of a trial, in a process of its own, which `frx_graph.arm_start` begins.

It answers what `frx_graph.trials.arm_messages` says. What the workload prints is output; answers go through pipes.
"""

from __future__ import annotations

from frx_graph.answering_arm import TrialArm, answer_to
from frx_graph.trials.arm_process import Connection


def answer_all(asked: Connection) -> None:
    """Answer questions until whoever asks has gone."""
    arm = TrialArm()
    for message in asked:
        asked.answer(answer_to(arm, message))
