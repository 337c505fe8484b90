"""A real process that compiles and times two loops, and all the ways in which such a process can fail."""

import sys
from collections.abc import Sequence

import pytest
import torch

from frx_graph.facts.operator_signature import GeneratedCall, OperatorSignature, ReadResult, TensorSpec
from frx_graph.measure.inductor import generated_timing
from frx_graph.measure.inductor.generated_messages import CallMessage
from frx_graph.measure.inductor.generated_timing import GeneratedTimes, time_generated

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
def test_loops_are_timed_and_what_cannot_be_compiled_is_said() -> None:
    missing = GeneratedCall(OperatorSignature("aten.no_such_operator.default", (image(*PLAIN),)), (ReadResult(0, ()),))
    times = time_generated([POOLINGS, (missing,), GATHERS])
    assert set(times.seconds) == {*POOLINGS, *GATHERS}
    assert all(0 < seconds < 10 for seconds in times.seconds.values())
    (failure,) = times.failures
    assert "no_such_operator" in failure


def test_a_call_is_the_same_after_the_journey() -> None:
    for call in (*POOLINGS, *GATHERS):
        assert CallMessage.model_validate_json(CallMessage.of(call).model_dump_json()).call() == call


def test_what_cannot_be_sent_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated_timing, "run_program", never_started)
    strange = GeneratedCall(OperatorSignature("aten.sum.default", (torch.float32,)), ())
    assert time_generated([(strange,)]) == GeneratedTimes()
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
