"""A real process that compiles and times two loops, and all the ways in which such a process can fail."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from frx_graph.facts.generated_call import GeneratedCall, ReadResult
from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec
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


WAITS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


def ended(pid: int) -> bool:
    """Gone, or a zombie that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def assert_all_end(written: Path) -> None:
    pids = [int(pid) for pid in written.read_text().split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 30
    while not all(map(ended, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(map(ended, pids))


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc to see processes in")  # noqa: PTH112


@needs_proc
def test_a_process_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    written = tmp_path / "pids"
    times = time_generated([POOLINGS], worker=(*python(WAITS), str(written)), limit_s=3.0)
    assert times.seconds == {}
    assert "had not ended after 3 s" in times.failures[0]
    assert_all_end(written)


@pytest.fixture
def interrupted() -> Callable[[Path], None]:
    """Raises `KeyboardInterrupt` in this thread once a file is there."""
    before = signal.getsignal(signal.SIGALRM)

    def when(written: Path) -> None:
        def look(*_: object) -> None:
            if written.exists():
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)

    yield when
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@needs_proc
def test_an_interrupted_call_leaves_no_process(tmp_path: Path, interrupted: Callable[[Path], None]) -> None:
    written = tmp_path / "pids"
    interrupted(written)
    with pytest.raises(KeyboardInterrupt):
        time_generated([POOLINGS], worker=(*python(WAITS), str(written)), limit_s=60.0)
    assert_all_end(written)
