"""What the process of a trial's arm runs: `python -m frx_graph.arm_start`.

It is bound to whoever has started it before torch is imported, which takes seconds: killed in the middle of that, a
trial leaves no arm behind.
"""

from __future__ import annotations

from frx_graph.trials.arm_process import connection


def main() -> None:
    """Answer questions until whoever asks has gone."""
    asked = connection()
    from frx_graph.trial_arm import answer_all

    answer_all(asked)


if __name__ == "__main__":
    main()
