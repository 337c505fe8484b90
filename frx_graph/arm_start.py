"""What the process of a trial's arm runs: `python -m frx_graph.arm_start`.

It is bound to whoever has started it, and has been asked something, before torch is imported, which takes seconds: a
trial that is killed in the middle of that, or interrupted while it starts an arm, leaves none behind.
"""

from __future__ import annotations

from frx_graph.trials.arm_process import connection


def main() -> None:
    """Answer questions until whoever asks has gone."""
    asked = connection()
    if not asked.comes_question():
        return
    from frx_graph.trial_arm import answer_all

    answer_all(asked)


if __name__ == "__main__":
    main()
