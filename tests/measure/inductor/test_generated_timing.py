"""A real process that compiles and times two loops, and all the ways in which such a process can fail."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch

from frx_graph.facts.operator_signature import GeneratedCall, OperatorSignature, ReadResult, TensorSpec
from frx_graph.measure.inductor import generated_timing
from frx_graph.measure.inductor.generated_timing import (
    GeneratedTimes,
    get_generated_seconds,
    make_generated_key,
    time_generated,
)
from frx_graph.measure.measurement_cache import (
    MeasuredOperators,
    make_signature_key,
    read_stored_seconds,
    store_seconds,
)

INDEX = TensorSpec((8, 1), (1, 1), torch.int64, "cpu"), TensorSpec((8,), (1,), torch.int64, "cpu")


def image(*strides: int) -> TensorSpec:
    return TensorSpec((1, 8, 4, 4), strides, torch.float32, "cpu")


def pooling(*strides: int) -> GeneratedCall:
    target = "prims._low_memory_max_pool_with_offsets.default"
    args = (image(*strides), (2, 2), (2, 2), (0, 0), (1, 1), False)
    return GeneratedCall(OperatorSignature(target, args), (ReadResult(0, (32, 1, 16, 8)),))


def gathers(*strides: int) -> GeneratedCall:
    args = (image(*strides), (None, None, *INDEX))
    return GeneratedCall(
        OperatorSignature("aten._unsafe_index.Tensor", args), (ReadResult(0, (512, 1, 64, 8)),), times=4
    )


LAST, PLAIN = (128, 1, 32, 8), (128, 16, 4, 1)
POOLINGS, GATHERS = (pooling(*PLAIN), pooling(*LAST)), (gathers(*PLAIN), gathers(*LAST))


@pytest.mark.integration
def test_loops_are_timed_and_compile_failures_are_reported() -> None:
    missing = GeneratedCall(OperatorSignature("aten.no_such_operator.default", (image(*PLAIN),)), (ReadResult(0, ()),))
    times = time_generated([POOLINGS, (missing,), GATHERS])
    assert set(times.seconds) == {*POOLINGS, *GATHERS}
    assert all(0 < seconds < 10 for seconds in times.seconds.values())
    (failure,) = times.failures
    assert "no_such_operator" in failure


def test_no_process_is_started_for_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated_timing, "run_program", never_started)
    assert time_generated([]) == GeneratedTimes()


def never_started(*_args: object, **_how: object) -> None:
    raise AssertionError("a process was started")


def python(program: str) -> Sequence[str]:
    return (sys.executable, "-c", program)


@pytest.mark.parametrize(
    "worker",
    [
        pytest.param(python("raise SystemExit(3)"), id="fails"),
        pytest.param(python("import os; os.abort()"), id="crashes"),
        pytest.param(python("print('no JSON')"), id="garbage"),
        pytest.param(python("""print('{"seconds": [[1.0]], "failures": [], "disturbed": false}')"""), id="too few"),
        pytest.param(
            python("""print('{"seconds": [[1.0, -1.0]], "failures": [], "disturbed": false}')"""), id="before it began"
        ),
        pytest.param(("/no/such/program",), id="not there"),
    ],
)
def test_a_process_that_fails_has_timed_nothing(worker: Sequence[str]) -> None:
    times = time_generated([POOLINGS], worker=worker)
    assert times.seconds == {}
    assert len(times.failures) == 1


def test_a_process_that_takes_too_long_has_timed_nothing() -> None:
    times = time_generated([POOLINGS], worker=python("import time; time.sleep(600)"), limit_s=1.0)
    assert times.seconds == {}
    assert "had not ended after 1 s" in times.failures[0]


def call(size: int, times: int = 1) -> GeneratedCall:
    spec = TensorSpec((size,), (1,), torch.float32, "cpu")
    return GeneratedCall(OperatorSignature("aten.relu.default", (spec,)), (ReadResult(0, (1,)),), times)


class Measure:
    """Answers with the sizes as seconds, and counts how often it was asked."""

    def __init__(self, *, disturbed: bool = False, unlucky: int = 13) -> None:
        self.asked: list[list[Sequence[GeneratedCall]]] = []
        self._disturbed = disturbed
        self._unlucky = call(unlucky)

    def __call__(self, groups: Iterable[Sequence[GeneratedCall]]) -> GeneratedTimes:
        self.asked.append(list(groups))
        good = [group for group in self.asked[-1] if self._unlucky not in group]
        seconds = {c: float(c.signature.tensors[0].shape[0]) for group in good for c in group}
        return GeneratedTimes(seconds, disturbed=self._disturbed)


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated_timing, "_KNOWN", {})


def test_the_second_time_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Measure()
    groups = [(call(1), call(2)), (call(3), call(4))]
    expected = {call(size): float(size) for size in (1, 2, 3, 4)}
    assert get_generated_seconds(groups, "cpu", directory=tmp_path, measure=measure) == expected
    assert measure.asked == [groups]
    assert get_generated_seconds(groups, "cpu", directory=tmp_path, measure=measure) == expected
    # Nor in another process.
    monkeypatch.setattr(generated_timing, "_KNOWN", {})
    assert get_generated_seconds(groups, "cpu", directory=tmp_path, measure=measure) == expected
    assert len(measure.asked) == 1
    # What is new is measured once, and only that.
    assert get_generated_seconds([*groups, (call(5),)], "cpu", directory=tmp_path, measure=measure)[call(5)] == 5.0
    assert measure.asked[1:] == [[(call(5),)]]


def test_for_nothing_nothing_is_started(tmp_path: Path) -> None:
    measure = Measure()
    assert get_generated_seconds([], "cpu", directory=tmp_path, measure=measure) == {}
    assert measure.asked == []


def test_failed_measurement_is_not_requested_again(tmp_path: Path) -> None:
    measure = Measure()
    groups = [(call(1),), (call(12), call(13))]
    for _ in range(2):
        assert get_generated_seconds(groups, "cpu", directory=tmp_path, measure=measure) == {call(1): 1.0}
    assert len(measure.asked) == 1


def test_times_of_a_busy_machine_are_neither_used_nor_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Measure(disturbed=True)
    for _ in range(2):
        assert get_generated_seconds([(call(1),)], "cpu", directory=tmp_path, measure=busy) == {}
    assert len(busy.asked) == 1
    monkeypatch.setattr(generated_timing, "_KNOWN", {})
    assert get_generated_seconds([(call(1),)], "cpu", directory=tmp_path, measure=Measure()) == {call(1): 1.0}


def test_a_directory_that_cannot_be_written_is_asked_for_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    measure = Measure()
    for _ in range(2):
        found = get_generated_seconds([(call(1),)], "cpu", directory=tmp_path / "file", measure=measure)
        assert found == {call(1): 1.0}
    assert len(measure.asked) == 1


def test_eager_and_generated_times_are_kept_apart(tmp_path: Path) -> None:
    one = call(1)
    assert len({make_generated_key(one), make_generated_key(call(1, times=4)), make_signature_key(one.signature)}) == 3
    path = generated_timing.get_measured_operators_path("cpu", tmp_path)
    store_seconds(path, {make_signature_key(one.signature): 9.0})
    assert get_generated_seconds([(one,)], "cpu", directory=tmp_path, measure=Measure()) == {one: 1.0}
    assert len(read_stored_seconds(path)) == 2
    eager = MeasuredOperators("cpu", directory=tmp_path)
    eager.time([(one.signature,)])
    assert eager.seconds(one.signature) == 9.0
