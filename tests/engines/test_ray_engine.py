"""How jobs are spread, and what counts: on a cluster that does what it is told, without Ray."""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.engines.attempt import Answer, Ending, ProcessorPart, Task, hash_trial_code
from frx_graph.engines.cluster import Node, Reservation, Running, Share
from frx_graph.engines.engine import Holding, JobResult, LocalEngine, NowhereError
from frx_graph.engines.measuring_slots import MeasuringSlots, divide_node
from frx_graph.engines.ray_engine import GONE_SECONDS, MOST_ATTEMPTS, GoneNodes, RayEngine
from frx_graph.errors import FrxError, TrialError
from frx_graph.trials.decisive_variables import select_decisive_variables


@dataclass(frozen=True)
class Double:
    number: int

    @property
    def label(self) -> str:
        return f"job {self.number}"

    def __call__(self, progress: Callable[[str], None]) -> int:
        progress("doubling")
        return 2 * self.number


JOBS = tuple(map(Double, range(4)))
A, B = Node("a", "10.0.0.1", 4.0, 0.0), Node("b", "10.0.0.2", 8.0, 2.0)
Fate = Callable[[int, Node], Ending]


@dataclass
class FakeCluster:
    """Every task ends at once. `fate` says how, by the number of the start and the node."""

    alive: list[Node]
    fate: Fate = lambda _number, _node: Ending.RETURNED
    others: frozenset[str] = frozenset()
    """Nodes that others hold."""
    held: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[str, Share]] = field(default_factory=list)
    started: list[tuple[Node, Task]] = field(default_factory=list)
    cancelled: list[Running] = field(default_factory=list)
    waited: int = 0

    def list_nodes(self) -> tuple[Node, ...]:
        return tuple(self.alive)

    def reserve(self, node: Node, share: Share) -> Reservation:
        self.held[node.id] += 1
        self.asked.append((node.id, share))
        return Reservation(node, share, None)

    def release(self, reservation: Reservation) -> None:
        self.held[reservation.node.id] -= 1
        assert self.held[reservation.node.id] >= 0, "given back twice"

    def start(self, reservation: Reservation, task: Task) -> Running:
        self.started.append((reservation.node, task))
        return Running(reservation, len(self.started) - 1, task.attempt)

    def wait(
        self, reservations: Collection[Reservation], running: Collection[Running], seconds: float
    ) -> tuple[tuple[Reservation, ...], tuple[Running, ...]]:
        self.waited += 1
        busy = [(one.reservation.node.id, one.reservation.share.part) for one in running]
        assert len(busy) == len(set(busy)), "two trials beside each other"
        return tuple(one for one in reservations if one.node.id not in self.others), tuple(running)

    def get_answer(self, running: Running) -> Answer:
        node, task = self.started[running.handle]
        ending = self.fate(running.handle, node)
        if ending is Ending.LOST:
            return Answer(task.attempt, Ending.LOST, "the node died")
        if ending is not Ending.RETURNED:
            return Answer(task.attempt, ending, "said so", "do so")
        try:
            return Answer(task.attempt, ending, value=pickle.dumps(pickle.loads(task.job)(lambda _: None)))
        except FrxError as error:
            return Answer(task.attempt, Ending.FAILED, error.message, error.hint)

    def cancel(self, running: Collection[Running]) -> None:
        self.cancelled += running


@dataclass
class Clock:
    """Goes on by what is waited for."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


def ran(
    cluster: FakeCluster, jobs: Sequence[Double] = JOBS, holding: Holding = Holding.CORES, **given: object
) -> list[JobResult[int]]:
    engine = RayEngine(cluster, holding, **given)  # type: ignore[arg-type]
    with contextlib.closing(engine.run(jobs, lambda _: None)) as finished:
        found = list(finished)
    assert not +cluster.held, "all places are given back"
    assert sorted(one.number for one in found) == list(range(len(jobs))), "each job is told of once"
    return sorted(found, key=lambda one: one.number)


def test_the_results_are_those_of_the_local_engine() -> None:
    here = list(LocalEngine().run(JOBS, lambda _: None))
    there = ran(FakeCluster([A, B]))
    assert [one.result for one in there] == [one.result for one in here] == [0, 2, 4, 6]
    assert all(one.placed is None for one in here)
    assert {one.placed.node for one in there if one.placed} == {"a", "b"}
    attempts = [one.placed.attempt for one in there if one.placed]
    assert len(set(attempts)) == len(JOBS)


def test_an_error_of_a_job_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Double, progress: object) -> int:
        raise TrialError("the program does not run", "run it")

    monkeypatch.setattr(Double, "__call__", failing)
    here = list(LocalEngine().run(JOBS[:2], lambda _: None))
    cluster = FakeCluster([A, B])
    there = ran(cluster, JOBS[:2])
    for found in here, there:
        assert [str(one.result) for one in found] == ["the program does not run (run it)"] * 2
        assert all(isinstance(one.result, TrialError) for one in found)
    assert len(cluster.started) == 2, "it would come to nothing anywhere"


def test_a_lost_attempt_is_made_again_elsewhere_and_counts_once() -> None:
    cluster = FakeCluster([A, B], lambda number, _: Ending.LOST if number == 0 else Ending.RETURNED)
    found = ran(cluster)
    assert [one.result for one in found] == [0, 2, 4, 6]
    assert len(cluster.started) == len(JOBS) + 1
    first = cluster.started[0]
    (again,) = [one for one in found if one.placed and one.placed.lost]
    assert again.placed is not None
    assert again.placed.node != first[0].id
    assert again.placed.attempt != first[1].attempt
    assert again.placed.lost == (f"{first[1].attempt} on {first[0].address}: the node died",)


def places_of(cluster: FakeCluster) -> MeasuringSlots:
    slots = MeasuringSlots(cluster, Holding.CORES)
    slots.reserve_nodes(cluster.list_nodes())
    for place in tuple(slots.asked):
        slots.note_granted(place)
    return slots


def test_avoided_node_is_used_only_as_a_last_resort() -> None:
    cluster = FakeCluster([A, B])
    slots = places_of(cluster)
    on_a, on_b = slots.take(frozenset()), slots.take(frozenset())
    assert on_a is not None
    assert on_b is not None
    assert (on_a.node, on_b.node) == (A, B)
    slots.put_back(on_a, lost=False)
    assert slots.take(frozenset({"a"})) is None, "b is busy, and will be free"
    slots.put_back(on_b, lost=True)
    slots.reserve_nodes(cluster.list_nodes())
    assert slots.take(frozenset({"a"})) is None, "b is asked for, and will be there"
    assert slots.take(frozenset({"a", "b"})) is on_a
    slots.put_back(on_a, lost=False)
    slots.unfit["b"] = "it has other code"
    slots.reserve_nodes(cluster.list_nodes())
    assert slots.take(frozenset({"a"})) is on_a


def test_a_lost_attempt_is_not_made_again_where_it_was_lost_while_another_node_is_busy() -> None:
    class Slow(FakeCluster):
        """What is first started on b takes a while."""

        def wait(
            self, reservations: Collection[Reservation], running: Collection[Running], seconds: float
        ) -> tuple[tuple[Reservation, ...], tuple[Running, ...]]:
            ours, ended = super().wait(reservations, running, seconds)
            return ours, tuple(one for one in ended if one.reservation.node is not B or self.waited > 6)

    cluster = Slow([A, B], lambda number, node: Ending.LOST if number == 0 and node is A else Ending.RETURNED)
    assert [one.result for one in ran(cluster)] == [0, 2, 4, 6]
    assert [node.id for node, task in cluster.started if pickle.loads(task.job) == JOBS[0]] == ["a", "b"]
    # Nobody else waits for that.
    assert [node.id for node, _ in cluster.started] == ["a", "b", "a", "a", "b"]


class Departing(FakeCluster):
    """Never tells of what runs on node a, which is not there `between` these seconds."""

    clock: Clock
    between: tuple[float, float]

    def list_nodes(self) -> tuple[Node, ...]:
        begin, end = self.between
        return tuple(node for node in self.alive if node is not A or not begin <= self.clock.seconds < end)

    def wait(
        self, reservations: Collection[Reservation], running: Collection[Running], seconds: float
    ) -> tuple[tuple[Reservation, ...], tuple[Running, ...]]:
        self.clock.seconds += seconds
        assert self.clock.seconds < 1000, "it waits for ever"
        told = [one for one in running if one.reservation.node is not A or self.clock.seconds >= self.between[1]]
        return super().wait(reservations, told, seconds)


@pytest.mark.parametrize("jobs", [JOBS, JOBS[:1]])
def test_job_on_a_departed_node_is_lost_without_notification(jobs: Sequence[Double]) -> None:
    cluster = Departing([A, B])
    cluster.clock, cluster.between = Clock(), (2.0, 1e9)
    found = ran(cluster, jobs, clock=cluster.clock)
    assert [one.result for one in found] == [0, 2, 4, 6][: len(jobs)]
    (again,) = [one for one in found if one.placed and one.placed.lost]
    assert again.placed is not None
    assert again.placed.lost == (f"{cluster.started[0][1].attempt} on 10.0.0.1: its node has gone",)
    assert [one.reservation.node.id for one in cluster.cancelled] == ["a"]
    assert GONE_SECONDS <= cluster.clock.seconds < GONE_SECONDS + 5


def test_a_node_that_is_back_soon_has_lost_nothing() -> None:
    cluster = Departing([A, B])
    cluster.clock, cluster.between = Clock(), (2.0, GONE_SECONDS + 1)
    assert not any(one.placed and one.placed.lost for one in ran(cluster, clock=cluster.clock))
    assert not cluster.cancelled
    assert len(cluster.started) == len(JOBS)


def test_how_long_a_node_has_been_gone_is_counted_from_its_last_going() -> None:
    clock = Clock()
    gone = GoneNodes(clock)
    for seconds, alive, expected in (
        (0, [], []),
        (GONE_SECONDS - 1, [], []),
        (GONE_SECONDS, ["a"], ["b"]),
        (GONE_SECONDS + 1, [], ["b"]),
        (2 * GONE_SECONDS + 1, ["b"], ["a"]),
    ):
        clock.seconds = seconds
        assert gone.find_gone(["a", "b"], alive) == frozenset(expected)
    assert gone.find_gone(["c"], []) == frozenset()


def test_what_is_lost_every_time_is_void_after_a_bounded_number_of_attempts() -> None:
    cluster = FakeCluster([A], lambda _number, _node: Ending.LOST)
    (found,) = ran(cluster, JOBS[:1])
    assert len(cluster.started) == MOST_ATTEMPTS
    assert isinstance(found.result, FrxError)
    assert found.result.message.startswith("void: 3 attempts were lost")
    assert found.placed is None


@pytest.mark.parametrize("ending", [Ending.FAILED, Ending.BROKEN])
def test_error_raised_by_the_job_is_not_retried(ending: Ending) -> None:
    cluster = FakeCluster([A, B], lambda _number, _node: ending)
    found = ran(cluster)
    assert len(cluster.started) == len(JOBS)
    assert all(isinstance(one.result, TrialError) and one.placed for one in found)


def test_a_node_that_is_unfit_is_left_out_and_costs_no_attempt() -> None:
    cluster = FakeCluster([A, B], lambda _number, node: Ending.UNFIT if node is A else Ending.RETURNED)
    found = ran(cluster)
    assert [one.result for one in found] == [0, 2, 4, 6]
    assert all(one.placed and one.placed.node == "b" and not one.placed.lost for one in found)
    assert [node.id for node, _ in cluster.started].count("a") == 1


def test_jobs_report_that_no_node_is_fit() -> None:
    found = ran(FakeCluster([A, B], lambda _number, _node: Ending.UNFIT))
    for one in found:
        assert str(one.result) == "no node may run it: 10.0.0.1: said so (do so); 10.0.0.2: said so (do so)"


HEAD, C = Node("head", "10.0.0.9", 0.0, 0.0), Node("c", "10.0.0.3", 4.0, 0.0)


class Shrinking(FakeCluster):
    """Node b goes with all that it ran; c comes at some time, if at all."""

    clock: Clock
    comes: float

    def list_nodes(self) -> tuple[Node, ...]:
        left = [node for node in self.alive if node is not B or self.clock.seconds < 10]
        return (*left, C) if self.clock.seconds >= self.comes else tuple(left)

    def wait(
        self, reservations: Collection[Reservation], running: Collection[Running], seconds: float
    ) -> tuple[tuple[Reservation, ...], tuple[Running, ...]]:
        self.clock.seconds += seconds
        assert self.clock.seconds < 1000, "it waits for ever"
        told = [one for one in running if one.reservation.node is not B or self.clock.seconds >= 10]
        return super().wait(reservations, told, seconds)


def shrinking(alive: list[Node], comes: float) -> Shrinking:
    endings = {"a": Ending.UNFIT, "b": Ending.LOST, "c": Ending.RETURNED}
    cluster = Shrinking(alive, lambda _, node: endings[node.id])
    cluster.clock, cluster.comes = Clock(), comes
    return cluster


def test_one_node_that_is_unfit_does_not_end_the_wait_for_those_that_have_gone() -> None:
    cluster = shrinking([HEAD, A, B], 40.0)
    assert [one.result for one in ran(cluster, clock=cluster.clock)] == [0, 2, 4, 6]


def test_both_reasons_are_reported_after_the_wait() -> None:
    cluster = shrinking([HEAD, A, B], 1e9)
    found = ran(cluster, clock=cluster.clock)
    assert 70 <= cluster.clock.seconds < 75
    for one in found:
        assert isinstance(one.result, NowhereError)
        assert str(one.result) == (
            "the cluster has no node to measure on; others may not run it: 10.0.0.1: said so (do so) "
            "(ray status shows the processors and GPUs it has)"
        )


def test_no_wait_if_all_remaining_nodes_are_unfit() -> None:
    cluster = shrinking([A, B], 1e9)
    found = ran(cluster, clock=cluster.clock)
    assert 10 <= cluster.clock.seconds < 15
    assert all(str(one.result) == "no node may run it: 10.0.0.1: said so (do so)" for one in found)


@pytest.mark.parametrize("alive", [[], [replace(A, cpus=0.0)]])
def test_a_cluster_with_no_place_is_an_error_at_once(alive: list[Node]) -> None:
    found = ran(FakeCluster(alive))
    assert all("no node to measure on" in str(one.result) for one in found)


def test_a_cluster_whose_nodes_have_all_gone_is_waited_for_but_not_for_ever() -> None:
    seconds = 0.0

    def clock() -> float:
        return seconds

    class Leaving(FakeCluster):
        def wait(
            self, reservations: Collection[Reservation], running: Collection[Running], seconds_given: float
        ) -> tuple[tuple[Reservation, ...], tuple[Running, ...]]:
            nonlocal seconds
            seconds += seconds_given
            if seconds == 10:
                self.alive.clear()
            if seconds == 40:
                self.alive.append(B)
            return super().wait(reservations, running, seconds_given) if seconds > 40 else ((), ())

    cluster = Leaving([A])
    assert [one.result for one in ran(cluster, clock=clock)] == [0, 2, 4, 6]
    assert {node.id for node, _ in cluster.started} == {"b"}
    seconds = 0.0
    gone = Leaving([A])
    gone.alive = [A]

    class Gone(Leaving):
        def list_nodes(self) -> tuple[Node, ...]:
            return (A,) if seconds < 10 else ()

    assert all("no node to measure on" in str(one.result) for one in ran(Gone([A]), clock=clock))
    assert 70 <= seconds < 75


def test_node_held_by_others_blocks_no_jobs() -> None:
    cluster = FakeCluster([A, B], others=frozenset({"a"}))
    assert [one.result for one in ran(cluster)] == [0, 2, 4, 6]
    assert {node.id for node, _ in cluster.started} == {"b"}


def test_closing_the_results_cancels_all_jobs() -> None:
    class Endless(FakeCluster):
        def wait(
            self, reservations: Collection[Reservation], running: Collection[Running], seconds: float
        ) -> tuple[tuple[Reservation, ...], tuple[Running, ...]]:
            if len(running) == 2:
                raise KeyboardInterrupt
            return super().wait(reservations, (), seconds)

    cluster = Endless([A, B])
    with (
        pytest.raises(KeyboardInterrupt),
        contextlib.closing(RayEngine(cluster, Holding.CORES).run(JOBS, lambda _: None)) as finished,
    ):
        list(finished)
    assert len(cluster.cancelled) == len(cluster.started) == 2
    assert not +cluster.held


def test_a_task_has_what_decides_here_and_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("UNRELATED", "1")
    cluster = FakeCluster([A])
    ran(cluster, environment="f" * 16)
    task = cluster.started[0][1]
    assert dict(task.variables)["OMP_NUM_THREADS"] == "3"
    assert "UNRELATED" not in dict(task.variables)
    assert task.variables == select_decisive_variables(dict(task.variables))
    assert (task.code, task.environment, task.folder) == (hash_trial_code(), "f" * 16, None)


def test_a_place_is_all_processors_or_a_gpu_with_its_share_of_them() -> None:
    assert list(divide_node(A, Holding.CORES)) == [Share(4.0, 0.0, 1.0)]
    assert list(divide_node(B, Holding.CORES)) == [Share(8.0, 0.0, 1.0)]
    assert list(divide_node(B, Holding.NODE)) == [Share(8.0, 2.0, 1.0)]
    assert list(divide_node(B, Holding.GPU)) == [Share(4.0, 1.0, 0.5, ProcessorPart(number, 2)) for number in range(2)]
    assert list(divide_node(A, Holding.GPU)) == []
    assert list(divide_node(replace(A, cpus=0.0), Holding.CORES)) == []
    three = list(divide_node(Node("c", "10.0.0.3", 8.0, 3.0), Holding.GPU))
    assert three == [Share(2.0, 1.0, 0.3333, ProcessorPart(number, 3)) for number in range(3)]
    assert sum(share.slot for share in three) <= 1


def test_each_gpu_gets_its_own_processors_and_a_lost_place_is_requested_again() -> None:
    cluster = FakeCluster([B], lambda number, _: Ending.LOST if number == 0 else Ending.RETURNED)
    assert [one.result for one in ran(cluster, holding=Holding.GPU)] == [0, 2, 4, 6]
    first, second = divide_node(B, Holding.GPU)
    assert cluster.asked == [("b", first), ("b", second), ("b", first)]
    assert [task.part for _, task in cluster.started[:2]] == [ProcessorPart(0, 2), ProcessorPart(1, 2)]
    assert all(task.gpus for _, task in cluster.started)


def test_a_trial_without_a_gpu_has_all_processors_and_sees_no_gpu() -> None:
    for holding, sees in ((Holding.CORES, False), (Holding.NODE, True)):
        cluster = FakeCluster([B])
        ran(cluster, holding=holding)
        assert {(task.part, task.gpus) for _, task in cluster.started} == {(None, sees)}


@given(fates=st.lists(st.sampled_from([Ending.RETURNED, Ending.LOST, Ending.FAILED]), min_size=12, max_size=12))
def test_whatever_is_lost_each_job_counts_once(fates: list[Ending]) -> None:
    cluster = FakeCluster([A, B], lambda number, _: fates[number] if number < len(fates) else Ending.RETURNED)
    for one in ran(cluster):
        mine = [
            (number, node)
            for number, (node, task) in enumerate(cluster.started)
            if pickle.loads(task.job) == JOBS[one.number]
        ]
        endings = [fates[number] if number < len(fates) else Ending.RETURNED for number, _ in mine]
        assert endings[:-1] == [Ending.LOST] * (len(endings) - 1)
        assert len(endings) <= MOST_ATTEMPTS
        if endings[-1] is Ending.RETURNED:
            assert one.result == 2 * one.number
            assert one.placed is not None
            assert len(one.placed.lost) == len(endings) - 1
        else:
            assert isinstance(one.result, FrxError)
