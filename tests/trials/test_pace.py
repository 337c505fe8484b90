"""How long the rest of a trial takes."""

from __future__ import annotations

import pytest

from frx_graph.trials.pace import Pace
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.protocol import make_protocol
from frx_graph.trials.samples import Block, Cause, Disturbance, MeasuredQuad
from frx_graph.trials.schedule import make_schedule


def test_the_rest_takes_as_long_as_what_was_seen() -> None:
    rule = make_protocol(TrialPolicy(process_pairs=3, quads_per_pair=2))
    plan = make_schedule(rule)
    now = [100.0]
    pace = Pace(rule, lambda: now[0])
    quads: list[MeasuredQuad] = []

    def measure(number: int, seconds: float, *, void: bool = False) -> float:
        now[0] += seconds
        disturbance = Disturbance(Cause.LOADED) if void else None
        first, second, third, fourth = (Block(arm, (0.1,), disturbance) for arm in plan[number].arms)
        quads.append(MeasuredQuad(plan[number], (first, second, third, fourth)))
        pace.note_quad()
        found = pace.estimate_seconds(quads)
        assert found is not None
        return found

    assert pace.estimate_seconds(quads) is None, "nothing is known before the first quad"
    now[0] += 10.0
    pace.note_started()
    assert measure(0, 2.0) == pytest.approx(2 * 10 + 5 * 2)
    # A void quad is measured again, and as many more are expected to be, each with a pause.
    assert measure(1, 2.0, void=True) == pytest.approx(2 * 10 + 5 * (2 + 2))
    now[0] += 15.0
    pace.note_waited()
    assert measure(1, 2.0) == pytest.approx(2 * 10 + 4 * (2 + (2 + 15) / 2))
    now[0] += 4.0
    pace.note_started()
    # One slow quad changes the estimate little.
    assert measure(2, 9.0) == pytest.approx(7 + 3 * (2 + (2 + 15) / 3))
    assert measure(3, 2.0) == pytest.approx(7 + 2 * (2 + (2 + 15) / 4))
    now[0] += 4.0
    pace.note_started()
    measure(4, 3.0)
    assert measure(5, 3.0) == 0.0
