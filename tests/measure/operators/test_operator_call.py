import itertools
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import profile

from frx_graph.facts.layout import make_contiguous_strides
from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec
from frx_graph.measure.operators.operator_call import isolate_calls, measure_operators
from frx_graph.measure.operators.operator_measurement import Mechanism
from frx_graph.measure.operators.operator_timing import select_undisturbed, take_turns, time_layouts


def test_operators_run_in_the_type_that_they_are_given() -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        with isolate_calls([]):
            assert torch.ops.aten.mm.default(x, x).dtype is torch.float32
        assert torch.ops.aten.mm.default(x, x).dtype is torch.bfloat16


def spec(*shape: int, strides: tuple[int, ...] | None = None, dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec(shape, make_contiguous_strides(shape) if strides is None else strides, dtype, "cpu")


def convolution(image: TensorSpec, weight: TensorSpec) -> OperatorSignature:
    axes = len(image.shape) - 2
    settings = ((1,) * axes, (1,) * axes, (1,) * axes, False, (0,) * axes, 1)
    return OperatorSignature("aten.convolution.default", (image, weight, None, *settings))


PRODUCT = OperatorSignature("aten.bmm.default", (spec(2, 8, 8), spec(2, 8, 8, strides=(256, 32, 2))))
CONVOLUTION = convolution(spec(2, 32, 28, 28), spec(64, 32, 3, 3))
POOLING = OperatorSignature("aten.avg_pool2d.default", (spec(2, 8, 16, 16), (2, 2), (2, 2)))


def test_copies_and_implementations() -> None:
    measured = measure_operators([PRODUCT, CONVOLUTION, PRODUCT])
    assert [(c.operand, c.shape) for c in measured[PRODUCT].copies] == [(1, (8, 8)), (1, (8, 8))]
    if torch.backends.mkldnn.is_available():
        assert {c.mechanism for c in measured[CONVOLUTION].copies} == {Mechanism.ONEDNN}
        assert measured[CONVOLUTION].implementation


def test_failures_are_reported_and_the_rest_is_measured() -> None:
    wrong_sizes = OperatorSignature("aten.mm.default", (spec(2, 3), spec(4, 5)))
    foreign = OperatorSignature("somebody.elses.default", (spec(2),))
    huge = OperatorSignature("aten.relu.default", (spec(1 << 40, 1 << 10),))
    written_through_itself = OperatorSignature("aten.relu_.default", (spec(4, 4, strides=(0, 1)),))
    failures: dict[OperatorSignature, str] = {}
    measured = measure_operators(
        [wrong_sizes, foreign, huge, written_through_itself, PRODUCT], on_failure=failures.__setitem__
    )
    assert set(measured) == {PRODUCT}
    assert set(failures) == {wrong_sizes, foreign, huge, written_through_itself}
    assert "not one of torch's own" in failures[foreign]
    assert all(len(reason) <= 200 for reason in failures.values())


def test_running_profiler_is_reported_for_every_operator() -> None:
    failures: dict[OperatorSignature, str] = {}
    with profile():
        assert measure_operators([PRODUCT], on_failure=failures.__setitem__) == {}
        assert time_layouts([POOLING], on_failure=failures.__setitem__) == {}
    assert "profiler is already running" in failures[PRODUCT]
    assert "profiler is running" in failures[POOLING]


def test_nothing_to_measure_starts_no_profiler() -> None:
    with profile():
        assert measure_operators([]) == {}
        assert time_layouts([]) == {}


def test_the_callers_random_numbers_gradients_and_modes_stay() -> None:
    dropout = OperatorSignature("aten.native_dropout.default", (spec(64, 64), 0.5, True))
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    with FakeTensorMode():
        measured = measure_operators([dropout, PRODUCT])
        timed = time_layouts([POOLING], budget_s=0.001)
    assert set(measured) == {dropout, PRODUCT}
    assert set(timed) == {POOLING}
    assert torch.is_grad_enabled()
    assert torch.equal(torch.rand(3), expected)


def test_layout_times_of_images_and_volumes() -> None:
    volume = convolution(spec(1, 16, 4, 8, 8), spec(16, 16, 3, 3, 3))
    times = time_layouts([CONVOLUTION, POOLING, volume, PRODUCT], budget_s=0.001)
    assert set(times) == {CONVOLUTION, POOLING, volume}
    for found in times.values():
        assert found.gain_seconds is not None
        assert found.plain_seconds is not None
        assert found.plain_seconds > 0


def test_layout_times_of_a_backward() -> None:
    backward = OperatorSignature(
        "aten.convolution_backward.default",
        (
            spec(1, 16, 8, 8),
            spec(1, 16, 8, 8),
            spec(16, 16, 3, 3),
            None,
            (1, 1),
            (1, 1),
            (1, 1),
            False,
            (0, 0),
            1,
            (True, True, False),
        ),
    )
    assert set(time_layouts([backward], budget_s=0.001)) == {backward}


class FakeClock:
    """A clock that stands still but for the seconds that `calls` take on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def call(self, name: str, seconds: Iterator[float]):
        def run() -> None:
            self.order.append(name)
            self.now += next(seconds)

        return run


def test_calls_take_turns_after_one_warm_up_each() -> None:
    clock = FakeClock()
    calls = (clock.call("a", itertools.repeat(0.25)), clock.call("b", itertools.repeat(0.5)))
    assert take_turns(calls, clock, budget_s=1.5, least_repetitions=2) == ([0.25, 0.25], [0.5, 0.5])
    assert clock.order == ["a", "b"] * 3


def test_disturbed_runs_are_made_up_for() -> None:
    clock = FakeClock()
    seconds = itertools.chain([0.0, 1.0, 9.0, 9.0, 1.0], itertools.repeat(1.0))
    (runs,) = take_turns([clock.call("a", seconds)], clock, budget_s=10.0, least_repetitions=3)
    assert runs == [1.0, 9.0, 9.0, 1.0, 1.0]


def test_a_machine_that_never_rests_is_given_up_on() -> None:
    clock = FakeClock()
    seconds = itertools.chain([0.0, 1.0], itertools.repeat(9.0))
    (runs,) = take_turns([clock.call("a", seconds)], clock, budget_s=5.0, least_repetitions=3)
    assert sum(runs) < 40


@given(st.lists(st.floats(1e-6, 10), min_size=1))
def test_the_fastest_run_is_never_disturbed(seconds: list[float]) -> None:
    kept = select_undisturbed(seconds)
    assert min(seconds) in kept
    assert max(kept) <= 2 * min(seconds)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_operators_on_a_gpu() -> None:
    def on_gpu(tensor: TensorSpec) -> TensorSpec:
        return TensorSpec(tensor.shape, tensor.strides, tensor.dtype, "cuda")

    anchor = convolution(on_gpu(spec(2, 32, 28, 28)), on_gpu(spec(64, 32, 3, 3)))
    assert measure_operators([anchor])[anchor].implementation
    assert time_layouts([anchor])[anchor].gain_seconds is not None
