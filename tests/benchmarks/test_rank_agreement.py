from __future__ import annotations

import pytest
from rank_agreement import LARGE, SMALL, Constants, constants_of, simulate

HERE = Constants(question=20e-6, byte=3e-10, connection=500e-6, way=50e-6, rank={})


def test_the_store_that_answers_at_once_leaves_the_ways() -> None:
    only_ways = Constants(question=0.0, byte=0.0, connection=0.0, way=1.0, rank={})
    # However many ranks: each asks twice for the plan and votes twice, and the others' answers wait for the last vote.
    assert simulate(2, SMALL, only_ways) == simulate(64, SMALL, only_ways)


def test_the_store_answers_one_question_after_the_other() -> None:
    only_store = Constants(question=1.0, byte=0.0, connection=0.0, way=0.0, rank={})
    # Three questions for the plan, four a register; to wake a rank and to write what was decided are questions, too.
    for world in (2, 8, 64):
        assert simulate(world, SMALL, only_store) >= 11 * world


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_more_ranks_take_longer_in_proportion(size: int) -> None:
    times = [simulate(world, size, HERE) for world in (2, 4, 64, 1024, 2048)]
    assert times == sorted(times)
    assert times[-1] / times[-2] == pytest.approx(2.0, rel=0.05)


def test_constants_are_taken_apart() -> None:
    store = {
        "store where one asks": 20e-6,
        "store where one asks for much": 20e-6 + 1e-3,
        "store where one connects": 720e-6,
    }
    found = {**store, "one asks": 60e-6, f"processor for {LARGE}": 9e-3}
    measured = {2: {**found, f"processor for {SMALL}": 1e-3}, 8: {**found, f"processor for {SMALL}": 2e-3}}
    constants = constants_of(measured)
    assert constants.question == pytest.approx(20e-6)
    assert constants.way == pytest.approx(40e-6)
    assert constants.connection == pytest.approx(700e-6)
    assert constants.byte == pytest.approx(1e-3 / LARGE)
    assert constants.rank == {SMALL: 1e-3, LARGE: 9e-3}
