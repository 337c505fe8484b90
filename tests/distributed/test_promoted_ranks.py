"""Ranks of a distributed program apply what one of them has found promoted, or proved: all of them, or none.

What each rank saw is made by `promoted_ranks.py`; there stands what is otherwise on which rank in each of its programs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import distributed as dist

RANKS = Path(__file__).with_name("promoted_ranks.py")
SHORT = 3.0
"""Seconds that ranks wait for what does not come at all."""
PROMOTED = ["proposed", "tried", "promoted"]
Seen = dict[str, Any]
Launch = Callable[..., list[Seen]]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed"),
]


@pytest.fixture(scope="module")
def launch(start_ranks: Callable[..., Launch]) -> Launch:
    return start_ranks(RANKS, SHORT)


@pytest.fixture(scope="module")
def otherwise(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    """What two ranks saw of everything that keeps them from a plan, or nearly so."""
    return launch(tmp_path_factory.mktemp("otherwise") / "ranks", "otherwise", 2, "file")


def of(ranks: list[Seen], name: str) -> list[Seen]:
    """What the ranks saw of the program; results were right on all of them."""
    assert None not in ranks
    found = [seen[name] for seen in ranks]
    assert all(all(seen["right"]) for seen in found)
    return found


def made(ranks: list[Seen]) -> list[list[list[str]]]:
    return [seen["made"] for seen in ranks]


def everything(ranks: list[Seen]) -> list[list[list[str]]]:
    """What is made where all apply the plan, each time that they compile."""
    assert all(seen["all"] for seen in ranks)
    return [[seen["all"]] * len(seen["made"]) for seen in ranks]


def nothing(ranks: list[Seen]) -> list[list[list[str]]]:
    return [[[]] * len(seen["made"]) for seen in ranks]


def warned(ranks: list[Seen]) -> list[str]:
    """The one warning of each rank, which came when it first compiled."""
    assert all(len(seen["said"][0]) == 1 and not any(seen["said"][1:]) for seen in ranks)
    return [seen["said"][0][0] for seen in ranks]


@pytest.mark.parametrize("world", [2, 4])
def test_all_ranks_apply_what_the_ledger_of_the_first_has_promoted(launch: Launch, tmp_path: Path, world: int) -> None:
    seen = launch(tmp_path / "ranks", "as_promoted", world, "tcp")
    for spread, graphs in {"data parallel": 1, "split": 2, "sharded": 1}.items():
        ranks = of(seen, spread)
        assert [rank["graphs"] for rank in ranks] == [graphs] * world
        assert made(ranks) == everything(ranks)
        assert [rank["said"] for rank in ranks] == [[[]] * len(rank["made"]) for rank in ranks]
        # It is the first rank that records that, whoever applies the plan.
        assert ranks[0]["kinds"] == [*PROMOTED * graphs, *["applied"] * graphs]
        assert all(rank["kinds"] == [] for rank in ranks[1:])


def test_ranks_exchange_in_a_graph_what_they_would_without_a_plan(launch: Launch, tmp_path: Path) -> None:
    first, last = launch(tmp_path / "ranks", "across", 2, "tcp")
    assert "propagate_layout" in first["made"]
    assert first["made"] == last["made"]
    assert first["right"] == [True, True, True]
    assert last["right"] == [False, True, True]


@pytest.mark.parametrize("spread", ["data parallel", "split", "sharded"])
def test_training_steps_are_right_while_the_plan_is_watched(launch: Launch, tmp_path: Path, spread: str) -> None:
    for seen in launch(tmp_path / "ranks", f"stepping {spread}", 2, "tcp"):
        assert seen["applied"] > 0
        assert seen["said"] == []
        assert all(seen["right"])
        # Four of ten steps, and those that both compute.
        assert seen["baselines"] > 10
        # FSDP2 has freed the weights when a backward ends.
        assert bool(seen["compared"]) is (spread != "sharded")
        assert all(seen["compared"])


def test_ranks_without_a_ledger_ask_once(otherwise: list[Seen]) -> None:
    ranks = of(otherwise, "nothing")
    assert made(ranks) == nothing(ranks)
    assert [rank["asked"] for rank in ranks] == [[1, 0]] * 2
    assert [rank["said"] for rank in ranks] == [[[], []]] * 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("rolled back", r"rank 1: plan [0-9a-f]{16} is rolled back in its ledger, .*ledger-1\.sqlite3;"),
        ("option", r"rank 1: its option 'inner' is 'aot_eager', not 'eager' \(no more plans are requested\);"),
        ("environment", "rank 1: its environment is [0-9a-f]{16}, not [0-9a-f]{16};"),
        ("not proved", "rank 0: SerializationError: an operator of the script;"),
    ],
)
def test_one_objecting_rank_leaves_all_on_the_baseline(otherwise: list[Seen], name: str, reason: str) -> None:
    ranks = of(otherwise, name)
    assert made(ranks) == nothing(ranks)
    for said in warned(ranks):
        assert re.search(reason, said)


def test_rank_that_rolls_back_alone_reports_it_and_the_others_follow(otherwise: list[Seen]) -> None:
    ranks = of(otherwise, "harmed")
    # The last makes no backward of the plan.
    assert all(one and not other for one, other in made(ranks))
    first, last = (rank["said"] for rank in ranks)
    assert first[0] == []
    assert "not finite where the baseline's are; that could not be recorded (there is no ledger at " in last[0][0]
    heeded = "rank 1: plan [0-9a-f]{16} was rolled back in its process;"
    assert all(re.search(heeded, said[1][0]) for said in (first, last))
    assert [rank["kinds"] for rank in ranks] == [[*PROMOTED, "applied"], []]


def test_a_ledger_that_cannot_be_read_has_nothing_against_a_plan(otherwise: list[Seen]) -> None:
    ranks = of(otherwise, "damaged")
    assert made(ranks) == everything(ranks)


def test_a_project_file_that_is_wrong_on_one_rank(otherwise: list[Seen]) -> None:
    ranks = of(otherwise, "project")
    assert made(ranks) == nothing(ranks)
    first, own = warned(ranks)
    assert "rank 1: OptionError: " in first
    assert "unknown key 'ledgr'" in first
    assert own.startswith("frx could not look up promoted plans")
    assert [rank["asked"] for rank in ranks] == [[1, 0]] * 2


def test_one_that_is_late_is_waited_for_once(otherwise: list[Seen]) -> None:
    ranks = of(otherwise, "slow")
    assert made(ranks) == nothing(ranks)
    assert all(f"within {SHORT:g} s (no more plans are requested);" in said for said in warned(ranks))
    assert [rank["asked"] for rank in ranks] == [[1, 0]] * 2


def test_the_autopilot_of_the_first_rank_tries_and_all_apply_what_it_proves(otherwise: list[Seen]) -> None:
    """That another rank tries is an error in `promoted_ranks.py`."""
    ranks = of(otherwise, "proved")
    assert made(ranks) == everything(ranks)
    # What graphs are known, whether all would wait, what came of it; when it is known only whether all apply it.
    assert [rank["asked"] for rank in ranks] == [[3, 1]] * 2
    assert [rank["kinds"] for rank in ranks] == [[*PROMOTED, "applied"], []]


def test_a_trial_that_takes_longer_than_the_others_wait_is_for_the_next_process(otherwise: list[Seen]) -> None:
    ranks = of(otherwise, "proved too late")
    assert made(ranks) == nothing(ranks)
    # The time budget is added, which is one second there.
    assert all(f"rank 0 has not offered a plan within {2 * SHORT + 1:g} s" in said for said in warned(ranks))
    assert ranks[0]["kinds"][:3] == PROMOTED


@pytest.mark.parametrize("world", [2, 4])
def test_one_is_killed_while_the_others_wait(launch: Launch, tmp_path: Path, world: int) -> None:
    *left, killed = launch(tmp_path / "ranks", "killed", world, "file")
    assert killed is None
    ranks = of(left, "killed")
    assert made(ranks) == nothing(ranks)
    reason = f"rank {world - 1} has not validated a plan within {2 * SHORT:g} s (no more plans are requested);"
    # The first tells; where that was killed, each.
    assert reason in ranks[0]["said"][0][0]
    assert [rank["said"] for rank in ranks[1:]] == [[[], []]] * (world - 2)
    assert [rank["asked"] for rank in ranks] == [[2, 0]] * (world - 1)
    assert all(rank["took"][0] >= 2 * SHORT for rank in ranks)
