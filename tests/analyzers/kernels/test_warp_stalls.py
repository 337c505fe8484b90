"""Shares of stalls: as they are measured, or of a whole sum, and never of a part of one."""

from __future__ import annotations

import pytest

from frx_graph.analyzers.kernels.warp_stalls import MEMORY, SYNCHRONISATION, warp_stalls


def test_shares_are_taken_as_they_are() -> None:
    found = warp_stalls({"stall_share.long_scoreboard": 5.0, "stall_share.barrier": 2.0, "duration": 1.0})
    assert found is not None
    assert found.dominant == "long_scoreboard"
    assert found.of(MEMORY) == pytest.approx(0.05)
    assert found.of(SYNCHRONISATION) == pytest.approx(0.02)


def test_cycles_are_shares_of_all_cycles() -> None:
    cycles = {"long_scoreboard": 6.0, "barrier": 1.0, "selected": 1.0, "not_selected": 2.0}
    found = warp_stalls({f"stall_cycles.{reason}": value for reason, value in cycles.items()})
    assert found is not None
    assert found.shares["long_scoreboard"] == pytest.approx(0.6)
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_a_part_of_the_reasons_tells_no_share() -> None:
    assert warp_stalls({"stall_cycles.long_scoreboard": 6.0, "stall_cycles.barrier": 1.0}) is None
    assert warp_stalls({}) is None
    assert warp_stalls({"stall_cycles.selected": 0.0}) is None


def test_what_issues_is_no_stall() -> None:
    found = warp_stalls({"stall_cycles.selected": 9.0, "stall_cycles.wait": 1.0})
    assert found is not None
    assert found.dominant == "wait"
    assert found.of(SYNCHRONISATION) == 0.0
