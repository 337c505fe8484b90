"""What torch compiled between two readings: a frame, again by its guards, a backward when it first runs, a kernel's
tuning; and nothing of that when it is all there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._dynamo.utils import dynamo_timed

from frx_graph.measure.inductor.compilations import describe_compiled_between, read_compilations


def compiled_by(run: Callable[[], object]) -> str | None:
    begin = read_compilations()
    run()
    return describe_compiled_between(begin, read_compilations())


def program(backend: str) -> Callable[[torch.Tensor], torch.Tensor]:
    torch._dynamo.reset()
    return torch.compile(lambda x: (x.sin() * 2).sum(), backend=backend, dynamic=False)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_frame_is_compiled_once(backend: str) -> None:
    run, x = program(backend), torch.ones(3)
    assert compiled_by(lambda: run(x)) == "1 frame"
    assert compiled_by(lambda: [run(x) for _ in range(3)]) is None


def test_a_guard_that_fails_compiles_again() -> None:
    run = program("eager")
    run(torch.ones(3))
    assert compiled_by(lambda: run(torch.ones(4))) == "1 frame"
    assert compiled_by(lambda: run(torch.ones(3, dtype=torch.float64))) == "1 frame"
    assert compiled_by(lambda: (run(torch.ones(3)), run(torch.ones(4)))) is None


def test_two_frames_around_a_graph_break() -> None:
    torch._dynamo.reset()

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    run = torch.compile(broken, backend="eager")
    assert compiled_by(lambda: run(torch.ones(3))) == "2 frames"
    assert compiled_by(lambda: run(torch.ones(3))) is None


def test_a_backward_is_compiled_when_it_first_runs() -> None:
    run, x = program("aot_eager"), torch.ones(3, requires_grad=True)
    loss = run(x)
    assert compiled_by(loss.backward) == "1 backward graph"
    assert compiled_by(lambda: run(x).backward()) is None


@pytest.mark.integration
@pytest.mark.usefixtures("nothing_compiled")
def test_inductor() -> None:
    run, x = torch.compile(lambda x: (x.sin() * 2).sum()), torch.ones(3, requires_grad=True)
    assert compiled_by(lambda: run(x)) == "1 frame"
    assert compiled_by(lambda: run(x).backward()) == "1 backward graph"
    assert compiled_by(lambda: run(x).backward()) is None
    # What comes out of Inductor's cache is loaded by a compilation of the frame, too.
    torch._dynamo.reset()
    assert compiled_by(lambda: run(x)) == "1 frame"


@pytest.mark.parametrize(
    ("phase", "said"),
    [("CachingAutotuner.benchmark_all_configs", "CachingAutotuner.benchmark_all_configs"), ("guard_collective", None)],
)
def test_what_is_timed_outside_of_frames(phase: str, said: str | None) -> None:
    def run() -> None:
        with dynamo_timed(phase):
            pass

    assert compiled_by(run) == said


def test_reset_is_not_a_compilation_and_hides_none() -> None:
    run, x = program("eager"), torch.ones(3)
    run(x)
    begin = read_compilations()
    torch._dynamo.reset()
    assert describe_compiled_between(begin, read_compilations()) is None
    # As many as before the reset.
    run(x)
    assert describe_compiled_between(begin, read_compilations()) == "1 frame"


def test_eager_programs_compile_nothing() -> None:
    assert compiled_by(lambda: torch.ones(3, requires_grad=True).sin().sum().backward()) is None
