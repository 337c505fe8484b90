"""The lock of canaries of whole steps."""

from __future__ import annotations

from dataclasses import dataclass

from frx_graph.monitor.canary_steps import MeasurementLock


@dataclass(eq=False)
class Program:
    is_measuring: bool = True


def test_program_that_makes_steps_keeps_the_lock() -> None:
    lock, one, other = MeasurementLock(), Program(), Program()
    assert lock.acquire(one)
    for _ in range(20):
        assert not lock.acquire(other)
        assert lock.renew(one)


def test_who_makes_none_loses_it_to_who_asks_four_times_in_a_row() -> None:
    lock, one, other = MeasurementLock(), Program(), Program()
    assert lock.acquire(one)
    assert [lock.acquire(other) for _ in range(5)] == [False, False, False, False, True]
    assert not lock.renew(one)
    assert lock.renew(other)


def test_lock_is_free_if_no_program_measures() -> None:
    lock, one, other = MeasurementLock(), Program(), Program()
    assert lock.acquire(one)
    one.is_measuring = False
    assert lock.acquire(other)
    del other
    assert lock.acquire(one)
