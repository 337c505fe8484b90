"""The one place to measure whole steps: whose it is."""

from __future__ import annotations

from dataclasses import dataclass

from frx_graph.monitor.measurement_lock import MeasuringPlace


@dataclass(eq=False)
class Program:
    measuring: bool = True


def test_who_makes_steps_keeps_it() -> None:
    place, one, other = MeasuringPlace(), Program(), Program()
    assert place.taken_for(one)
    for _ in range(20):
        assert not place.taken_for(other)
        assert place.kept_by(one)


def test_who_makes_none_loses_it_to_who_asks_four_times_in_a_row() -> None:
    place, one, other = MeasuringPlace(), Program(), Program()
    assert place.taken_for(one)
    assert [place.taken_for(other) for _ in range(5)] == [False, False, False, False, True]
    assert not place.kept_by(one)
    assert place.kept_by(other)


def test_it_is_free_where_nobody_measures() -> None:
    place, one, other = MeasuringPlace(), Program(), Program()
    assert place.taken_for(one)
    one.measuring = False
    assert place.taken_for(other)
    del other
    assert place.taken_for(one)
