"""All ranks get the same plan, or all the baseline, in time, whoever objects, is late, or dies.

Ranks are processes, by fork from one that `agreement_ranks.py` runs in; what it says there of each scenario is checked
here. A launch that takes longer than its limit fails.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import FEW_EXAMPLES
from torch import distributed as dist

from frx_graph.distributed import voting
from frx_graph.distributed.consensus import Agreement, agree, is_first_rank, leave, negotiate
from frx_graph.distributed.voting import GRACE_SECONDS, Voter

RANKS = Path(__file__).with_name("agreement_ranks.py")
SHORT = 3.0
"""Seconds that ranks wait for what does not come at all."""
SLACK = 2 * GRACE_SECONDS
Seen = dict[str, Any]
Launch = Callable[..., list[Seen | None]]

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")


@pytest.fixture(scope="module")
def launched(start_ranks: Callable[..., Launch]) -> Launch:
    """Called with a folder, a scenario, the number of ranks and the kind of store."""
    return start_ranks(RANKS, SHORT)


@pytest.fixture
def launch(launched: Launch, tmp_path: Path) -> Launch:
    return functools.partial(launched, tmp_path / "ranks")


IN_TURN = [(2, "tcp"), (4, "tcp"), (2, "tcp without libuv"), (2, "file")]
"""Processes, and where they meet. The first is for every run, the others for the integration tier."""


@pytest.fixture(
    scope="module",
    params=[IN_TURN[0], *(pytest.param(each, marks=pytest.mark.integration) for each in IN_TURN[1:])],
    ids=[f"{store}-{world}" for world, store in IN_TURN],
)
def turns(request: pytest.FixtureRequest, launched: Launch, tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    """What each rank saw of everything that no rank dies of."""
    world, store = request.param
    found = launched(tmp_path_factory.mktemp("turns") / "ranks", "in_turn", world, store)
    seen = [rank for rank in found if rank is not None]
    assert len(seen) == world
    return seen


def said(turns: list[Seen], name: str) -> list[Any]:
    """What `agree` returned on each rank. The program's own collective has to have worked afterwards."""
    assert [seen[name]["summed"] for seen in turns] == [len(turns)] * len(turns)
    return [seen[name]["said"] for seen in turns]


def the_one(answers: list[Seen], seconds: float | None = None) -> Seen:
    """What all ranks were told, which is the same."""
    for answer in answers:
        took = answer.pop("took")
        assert seconds is None or took <= seconds + SLACK
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def refused(reason: str, *dissenters: int) -> Seen:
    silent = " has not " in reason
    return {"plan": None, "reason": reason, "dissenters": list(dissenters), "silent": silent, "certain": True}


def agreed(plan: str, world: int) -> Seen:
    return {"plan": plan, "reason": f"all {world} ranks agree", "dissenters": [], "silent": False, "certain": True}


def test_all_agree_and_again(turns: list[Seen]) -> None:
    assert the_one(said(turns, "agree")) == agreed("plan", len(turns))
    assert the_one(said(turns, "again")) == agreed("another plan", len(turns))


def test_one_dissents(turns: list[Seen]) -> None:
    last = len(turns) - 1
    assert the_one(said(turns, "dissent")) == refused(f"rank {last}: another graph", last)


def test_one_raises(turns: list[Seen]) -> None:
    last = len(turns) - 1
    assert the_one(said(turns, "fail")) == refused(f"rank {last}: ValueError: cannot be read", last)


def test_one_is_too_slow(turns: list[Seen]) -> None:
    last = len(turns) - 1
    answers = said(turns, "slow")
    assert all(answer["took"] <= SHORT + SLACK for answer in answers[:last])
    found = the_one(answers)
    # The others say it where their time is up first, as a rule, or it says so itself.
    assert f"{SHORT:g} s" in found.pop("reason")
    assert found == {"plan": None, "dissenters": [last], "silent": True, "certain": True}


def test_nothing_is_proposed(turns: list[Seen]) -> None:
    assert the_one(said(turns, "nothing")) == refused("nothing was proposed")


def test_the_proposal_fails(turns: list[Seen]) -> None:
    assert the_one(said(turns, "unable")) == refused("rank 0: RuntimeError: no ledger", 0)


def test_the_first_rank_rejects_its_own_proposal(turns: list[Seen]) -> None:
    assert the_one(said(turns, "own")) == refused("rank 0: changed my mind", 0)


def test_a_plan_is_too_large_for_a_store(turns: list[Seen]) -> None:
    found = the_one(said(turns, "large"))
    assert found == refused("rank 0: the plan has 5242880 bytes, and may have 4194304", 0)


def test_one_is_interrupted(turns: list[Seen]) -> None:
    *others, last = said(turns, "left")
    assert last == "SystemExit: 3"
    assert the_one(others) == refused(f"rank {len(others)} was interrupted", len(others))


def test_graphs_are_compiled_in_another_order(turns: list[Seen]) -> None:
    answers = said(turns, "orders")
    # Rank 0 asks about b first, the others about a.
    found = [
        the_one([ask["ab".index(graph) if rank else "ba".index(graph)] for rank, ask in enumerate(answers)], SHORT)
        for graph in "ab"
    ]
    # Who runs out of time first leaves a graph without a plan, and may come to the other in time.
    assert any(answer["plan"] is None and f"{SHORT:g} s" in answer["reason"] for answer in found)


def test_a_plan_arrives_as_it_is_after_all_that(turns: list[Seen]) -> None:
    assert the_one(said(turns, "at last")) == agreed("".join(map(chr, range(256))), len(turns))


def test_recreated_process_group_starts_afresh(launch: Launch) -> None:
    seen = launch("set_up_again", 2, "tcp")
    assert the_one([rank["first"] for rank in seen]) == agreed("plan", 2)
    assert the_one([rank["second"] for rank in seen]) == agreed("plan", 2)
    assert [rank["summed"] for rank in seen] == [2.0, 2.0]


def survivors(seen: list[Seen | None], victim: int, limit: float) -> list[Seen]:
    """What was said to those that are left, in time. Their own collective has to have worked afterwards."""
    assert [rank for rank, found in enumerate(seen) if found is None] == [victim]
    left = [found for found in seen if found is not None]
    assert [found["summed"] for found in left] == [len(left)] * len(left)
    for found in left:
        assert found["said"]["plan"] is None
        assert found["said"]["took"] <= limit + SLACK
    return [found["said"] for found in left]


@pytest.mark.integration
@pytest.mark.parametrize(("world", "store"), [(2, "tcp"), (4, "tcp"), (4, "file")])
def test_one_was_killed_before(launch: Launch, world: int, store: str) -> None:
    last = world - 1
    found = the_one(survivors(launch("killed_before", world, store), last, SHORT))
    assert found == refused(f"rank {last} has not validated a plan within {SHORT:g} s", last)


@pytest.mark.integration
@pytest.mark.parametrize(("world", "store"), [(2, "tcp"), (4, "file")])
def test_one_is_killed_while_it_validates(launch: Launch, world: int, store: str) -> None:
    last = world - 1
    found = the_one(survivors(launch("killed_validating", world, store), last, SHORT))
    assert found == refused(f"rank {last} has not validated a plan within {SHORT:g} s", last)


@pytest.mark.integration
def test_one_is_killed_when_it_has_found_the_plan_valid(launch: Launch) -> None:
    found = the_one(survivors(launch("killed_after_its_vote", 4, "tcp"), 3, SHORT + 2))
    assert found == refused(f"rank 3 has not acknowledged a plan within {SHORT + 2:g} s", 3)


@pytest.mark.integration
def test_the_first_is_killed_and_the_store_is_elsewhere(launch: Launch) -> None:
    found = the_one(survivors(launch("first_killed_validating", 4, "file"), 0, SHORT))
    assert found == refused(f"rank 0 has not validated a plan within {SHORT:g} s", 0)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", ["first_killed_proposing", "first_killed_validating", "first_stopped"])
def test_the_first_takes_the_store_with_it(launch: Launch, scenario: str) -> None:
    for rank, found in enumerate(survivors(launch(scenario, 4, "tcp"), 0, SHORT), start=1):
        assert found["reason"].startswith(f"rank {rank} has lost the others: ")
        # Nobody can have applied a plan that this rank has not acknowledged.
        assert found["certain"]
        assert found["silent"]


def test_store_lost_after_acknowledging_leaves_all_ranks_uncertain(launch: Launch) -> None:
    for found in survivors(launch("first_killed_acknowledging", 4, "tcp"), 0, 8.0):
        assert "has lost the others" in found["reason"]
        assert not found["certain"]


@pytest.mark.integration
@pytest.mark.parametrize("scenario", ["data_parallel", "sharded"])
def test_a_step_is_trained_under_the_plan(launch: Launch, scenario: str) -> None:
    for seen in launch(scenario, 2, "tcp"):
        assert seen is not None
        assert seen["said"] == agreed("all", 2)
        assert seen["applied"] > 0
        assert seen["as without"]
        assert seen["same"]
        assert seen["trained"]


MOMENTS = st.floats(0.0, 0.06)
"""Seconds: about the time limits below, so that ranks run out of time in every state."""


@pytest.mark.integration
@given(
    starts=st.lists(MOMENTS, min_size=4, max_size=4),
    needs=st.lists(MOMENTS, min_size=4, max_size=4),
    limits=st.lists(st.floats(0.02, 0.1), min_size=4, max_size=4),
)
def test_ranks_with_different_timeouts_get_the_same_answer(
    starts: list[float], needs: list[float], limits: list[float]
) -> None:
    store = dist.HashStore()
    said: dict[int, Agreement] = {}

    def run(rank: int) -> None:
        time.sleep(starts[rank])
        voter = Voter(range(4), rank, limits[rank], lambda: store)
        said[rank] = negotiate(voter, lambda: b"plan", lambda _: time.sleep(needs[rank]))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [said[rank] for rank in range(4)] == [said[0]] * 4
    assert (said[0].plan is None) == bool(said[0].dissenters)


class Killed(BaseException):
    """A rank dies."""


class Mortal:
    """A store to one that dies after so many questions."""

    def __init__(self, store: dist.Store, questions: int) -> None:
        self.store = store
        self.questions = questions

    def __getattr__(self, name: str) -> Any:
        if self.questions <= 0:
            raise Killed
        self.questions -= 1
        return getattr(self.store, name)


@dataclass(frozen=True)
class OneOfALife:
    """`dies` after so many questions, `begins` so many seconds after its life, `objects` to the plan; its clock is
    `ahead`."""

    dies: int
    begins: float
    objects: bool
    ahead: float


def lives(world: int, immortal: bool) -> st.SearchStrategy[list[OneOfALife]]:
    rank = st.builds(
        OneOfALife,
        dies=st.just(100) if immortal else st.integers(0, 12),
        begins=st.floats(0.0, 0.02),
        objects=st.integers(0, 9).map(lambda chosen: chosen == 0),
        ahead=st.sampled_from([0.0, 0.0, 0.0, -3600.0, 3600.0]),
    )
    return st.lists(rank, min_size=world, max_size=world)


def lived(
    store: dist.Store, plan: bytes, ranks: list[OneOfALife]
) -> tuple[dict[int, Agreement], set[tuple[int, bytes]]]:
    """What ranks were told that have not died, and who has found which plan valid."""
    said: dict[int, Agreement] = {}
    found_valid: set[tuple[int, bytes]] = set()
    # As if a restart took longer than what the start of a process is exact to.
    begun = time.time() + voting._START_PRECISION_SECONDS

    def run(rank: int, one: OneOfALife) -> None:
        def valid(offered: bytes) -> str | None:
            if one.objects:
                return "another graph"
            found_valid.add((rank, offered))
            return None

        time.sleep(one.begins)
        mortal: Any = Mortal(store, one.dies)
        voter = Voter(range(len(ranks)), rank, 0.3, lambda: mortal)
        voter._started = begun + one.ahead
        with contextlib.suppress(Killed):
            said[rank] = negotiate(voter, lambda: plan, valid)

    threads = [threading.Thread(target=run, args=each) for each in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said, found_valid


@pytest.mark.integration
@settings(FEW_EXAMPLES)
@given(
    earlier=st.lists(lives(3, immortal=False), min_size=1, max_size=2),
    last=lives(3, immortal=True),
    same_plan=st.booleans(),
)
def test_leftovers_of_an_earlier_life_are_not_consent(
    earlier: list[list[OneOfALife]], last: list[OneOfALife], same_plan: bool
) -> None:
    """Whatever clocks say: who applies a plan has the plan of all, and all have found it valid in this life."""
    store = dist.HashStore()
    for number, ranks in enumerate(earlier):
        lived(store, b"plan" if same_plan else f"plan of life {number}".encode(), ranks)
    plan = b"plan" if same_plan else b"plan of the last life"
    said, found_valid = lived(store, plan, last)
    assert len({answer.plan for answer in said.values()}) == 1, said
    if said[0].plan is not None:
        assert {rank for rank, offered in found_valid if offered == said[0].plan} == {0, 1, 2}
    if all(one.ahead == 0.0 and not one.objects for one in last):
        assert said[0].plan == plan, said


def test_answer_at_the_deadline_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is named who has said yes when it is looked who has not."""
    store = dist.HashStore()
    voter = Voter(range(3), 0, 0.001, lambda: store)

    def too_late(*_: Any) -> None:
        for rank in (1, 2):
            store.set(voter._format_vote_key("validated", rank), "")
        raise RuntimeError("timeout")

    monkeypatch.setattr(dist.HashStore, "wait", too_late)
    found = voter.collect_votes("validated")
    assert (found.yes, found.ranks, found.silent) == (True, (), False)


class Counted:
    """A store, and how often it was asked something."""

    def __init__(self, store: dist.Store) -> None:
        self.store = store
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        return getattr(self.store, name)


@pytest.mark.parametrize("world", [2, 7])
def test_each_rank_sends_ten_messages(world: int) -> None:
    """As docs/distributed.md says."""
    store = dist.HashStore()
    counted = [Counted(store) for _ in range(world)]

    def run(rank: int) -> None:
        voter = Voter(range(world), rank, 60.0, lambda: counted[rank])
        negotiate(voter, lambda: b"plan", lambda _: None)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.asked for each in counted] == [10] * world
    assert store.num_keys() == 5 + 2 * world


def test_where_nothing_is_proposed_each_rank_sends_two() -> None:
    store = dist.HashStore()
    counted = [Counted(store) for _ in range(3)]
    for rank in range(3):
        voter = Voter(range(3), rank, 60.0, lambda rank=rank: counted[rank])  # type: ignore[misc]
        assert negotiate(voter, lambda: None, lambda _: None).reason == "nothing was proposed"
    assert [each.asked for each in counted] == [2] * 3


@pytest.mark.parametrize("silent", [{0}, {5}, {99}, {3, 4, 50}, set(range(1, 100))])
def test_silent_ranks_are_named(silent: set[int]) -> None:
    store = dist.HashStore()
    voter = Voter(range(100), 0, 0.001, lambda: store)
    for rank in set(range(100)) - silent:
        store.set(voter._format_vote_key("validated", rank), "")
    assert voter.await_verdict("validated").ranks == tuple(sorted(silent)[:16])


def test_rank_that_gave_up_does_not_vote() -> None:
    store = dist.HashStore()
    voter = Voter(range(2), 0, 60.0, lambda: store)
    assert leave(voter, TimeoutError("silent")).certain
    with pytest.raises(TimeoutError, match="given up"):
        voter.vote(None)
    assert store.num_keys() == 0


def test_without_a_process_group_a_plan_needs_to_be_valid() -> None:
    assert not dist.is_initialized()
    assert agree(lambda: b"plan", lambda _: None, about="graph", seconds=0.0).plan == b"plan"
    assert agree(lambda: None, lambda _: None, about="graph", seconds=0.0) == Agreement(None, "nothing was proposed")
    assert agree(lambda: b"plan", lambda _: "old", about="graph", seconds=0.0) == Agreement(None, "old", (0,))


def test_single_rank_does_not_use_the_store() -> None:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        keys = store.num_keys()
        assert agree(lambda: b"plan", lambda _: None, about="graph", seconds=0.0).plan == b"plan"
        assert store.num_keys() == keys
    finally:
        dist.destroy_process_group()


def test_a_store_that_is_none_leads_to_the_baseline() -> None:
    """Programs that only pretend to be one rank of many have one."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=8)
    try:
        found = agree(lambda: b"plan", lambda _: None, about="graph", seconds=60.0)
    finally:
        dist.destroy_process_group()
    assert (found.plan, found.certain) == (None, True)
    assert found.reason.startswith("rank 0 has lost the others")


def test_what_is_asked_of_tensors_is_not_disturbed_by_fakes() -> None:
    """Where graphs are compiled, tensors are fakes."""
    store = dist.HashStore()
    voter = Voter(range(1), 0, 60.0, lambda: store)
    with torch._subclasses.fake_tensor.FakeTensorMode():
        assert negotiate(voter, lambda: b"plan", lambda _: None).plan == b"plan"


@pytest.mark.parametrize(("rank", "first"), [(None, True), ("0", True), ("1", False)])
def test_the_launcher_names_the_first_rank_before_the_group_exists(
    rank: str | None, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert is_first_rank() is first


@pytest.mark.parametrize("rank", [0, 1])
def test_the_group_names_the_first_rank(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", str(1 - rank))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    assert is_first_rank() is (rank == 0)
