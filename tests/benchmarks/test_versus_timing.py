"""How the arms of a comparison are interleaved, and the statistics of their samples; no test looks at a real clock."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from versus_timing import (
    Step,
    block_length,
    cpu_clock,
    cuda_clock,
    geometric_mean,
    interleave,
    median_interval,
    no_recompilation,
    ratio,
    round_order,
)

positive = st.floats(1e-3, 1e3)


class FakeMachine:
    """A clock that only steps move; a step takes what it is said to take."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def step(self, name: str, seconds: Callable[[], float]) -> Step:
        def run() -> None:
            self.ran.append(name)
            self.now += seconds()

        return run

    def clock(self, step: Step, count: int) -> float:
        return cpu_clock(step, count, now=lambda: self.now)


@contextlib.contextmanager
def quiet() -> Iterator[Callable[[], bool]]:
    yield lambda: False


def test_the_clock_gives_the_fastest_step_of_a_block() -> None:
    machine = FakeMachine()
    times = iter([3.0, 1.0, 2.0])
    assert machine.clock(machine.step("a", lambda: next(times)), 3) == 1.0


def test_every_arm_gets_its_own_time_in_every_round() -> None:
    machine = FakeMachine()
    steps = {"slow": machine.step("slow", lambda: 0.5), "fast": machine.step("fast", lambda: 0.25)}
    samples = interleave(steps, 4, 1.0, machine.clock, watch=quiet)
    assert samples.seconds == {"slow": (0.5,) * 4, "fast": (0.25,) * 4}
    assert (samples.block, samples.disturbed) == (2, 0)


def test_blocks_of_a_round_follow_one_another_and_turn_round() -> None:
    machine = FakeMachine()
    steps = {name: machine.step(name, lambda: 1.0) for name in "abc"}
    interleave(steps, 4, 1.0, machine.clock, watch=quiet)
    measured = "".join(machine.ran[3:])
    assert measured == "abccbabcaacb"


@pytest.mark.parametrize(
    ("patience", "disturbed", "kept"),
    [
        (0.0, (True, False, True), (2.0, 1.0, 3.0)),
        (1.5, (True, True, True, False), (4.0, 1.0, 2.0)),
        (2.5, (True, False, True, False, False), (2.0, 4.0, 5.0)),
        (9.0, (False, False, False), (1.0, 2.0, 3.0)),
    ],
    ids=["no time to repeat", "time for one", "two are enough", "nothing to repeat"],
)
def test_disturbed_rounds_are_repeated_while_there_is_time(
    patience: float, disturbed: tuple[bool, ...], kept: tuple[float, ...]
) -> None:
    verdicts, seconds, times = iter(disturbed), itertools.count(1.0), itertools.count(0.0)

    @contextlib.contextmanager
    def watch() -> Iterator[Callable[[], bool]]:
        yield lambda: next(verdicts)

    def clock(_step: Step, count: int) -> float:
        return 1.0 if count == 3 else next(seconds)

    samples = interleave({"a": lambda: None}, 3, 1.0, clock, patience, watch, now=lambda: next(times))
    assert samples.seconds["a"] == kept
    assert samples.disturbed == sum(disturbed[int(number) - 1] for number in kept)
    assert next(verdicts, None) is None


@given(st.integers(1, 6), st.integers(0, 40))
def test_every_round_runs_every_arm_once(count: int, number: int) -> None:
    arms = [str(index) for index in range(count)]
    assert sorted(round_order(arms, number)) == arms


@given(st.integers(1, 6))
def test_every_arm_takes_every_position_equally_often(count: int) -> None:
    arms = [str(index) for index in range(count)]
    places = Counter((arm, place) for n in range(2 * count) for place, arm in enumerate(round_order(arms, n)))
    assert set(places.values()) == {2}
    assert len(places) == count * count


@pytest.mark.parametrize(("step", "length"), [(10.0, 1), (1.0, 1), (0.4, 3), (0.25, 4), (1e-9, 50), (0.0, 50)])
def test_a_block_is_as_long_as_asked_for_within_limits(step: float, length: int) -> None:
    assert block_length(step, 1.0) == length


@given(st.lists(positive, min_size=1, max_size=30), positive)
def test_a_ratio_does_not_see_what_slows_a_whole_round(seconds: list[float], factor: float) -> None:
    assert ratio([s * factor for s in seconds], seconds).median == pytest.approx(factor)


def test_faster_is_over_one() -> None:
    assert ratio([2.0, 2.0, 2.0], [1.0, 1.0, 100.0]).median == 2.0


def test_the_interval_takes_the_order_statistics_of_the_binomial_tables() -> None:
    # Conover's table A3: of 15 values the 4th and the 12th hold the median with 96.5 %, of 6 the extremes with 96.9 %.
    assert median_interval([float(n) for n in range(1, 16)]) == (4.0, 12.0)
    assert median_interval([float(n) for n in range(6, 0, -1)]) == (1.0, 6.0)
    assert median_interval([1.0] * 5) is None


@given(st.lists(positive, min_size=6, max_size=40))
def test_the_interval_holds_the_median_of_the_sample(values: list[float]) -> None:
    interval = median_interval(values)
    assert interval is not None
    assert interval[0] <= ratio(values, [1.0] * len(values)).median <= interval[1]


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None


def test_a_recompilation_inside_is_an_error() -> None:
    torch._dynamo.reset()
    double = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    double(torch.ones(2))
    with no_recompilation():
        assert torch.equal(double(torch.ones(2)), torch.full((2,), 2.0))
        with pytest.raises(RuntimeError, match="recompil"):
            double(torch.ones(3))
    double(torch.ones(3))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_cuda_clock_counts_what_the_device_does() -> None:
    x = torch.ones(1 << 12, 1 << 12, device="cuda")
    assert cuda_clock(lambda: x @ x, 3) > cuda_clock(lambda: None, 3) >= 0
