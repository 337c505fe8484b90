"""Detect compilations by torch in this process since a given moment; they void the time of a step.

`torch._dynamo.utils.dynamo_timed` times every phase of a compilation (Dynamo's frames, AOTAutograd's graphs, Inductor's
code, Triton's kernels, recording of CUDA graphs) in a list of seconds per phase. Comparing the lengths of these lists
takes some microseconds and needs no hook. Running compiled code adds nothing to them. `get_compilation_metrics()` is a
bounded queue instead, and `_dynamo.callback` misses Triton's tuning at run time and is cleared by
`torch._dynamo.reset`.

Not seen: kernels that a program compiles with Triton itself, and code that libraries such as oneDNN generate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frx_graph.support.torch_internals import dynamo_utils

_NOT_COMPILING = frozenset({"guard_collective"})
"""Timed phases that run without any compilation: that one asks all ranks whether all their guards held."""

_FRAME = "_compile.compile_inner"
_BACKWARD = "backward._backward_impl"


@dataclass(frozen=True, slots=True)
class Compilations:
    """The phases timed so far. The lists belong to torch: a phase with a different list was reset since."""

    phases: Mapping[str, tuple[list[float], int]]


def read_compilations() -> Compilations:
    """Return the number of compilations in each phase so far."""
    # Copied in one step, since another thread may be compiling.
    phases = dict(dynamo_utils.compilation_time_metrics)
    return Compilations({name: (times, len(times)) for name, times in phases.items() if name not in _NOT_COMPILING})


def count_compiled_frames() -> int:
    """Return the number of frames that Dynamo has compiled in this process since its last reset."""
    return len(dynamo_utils.compilation_time_metrics.get(_FRAME, ()))


def describe_compiled_between(begin: Compilations, end: Compilations) -> str | None:
    """Describe what was compiled between two readings; None if nothing was."""
    counts = {name: _count_new(begin.phases.get(name), now) for name, now in end.phases.items()}
    grown = {name: count for name, count in counts.items() if count}
    known = ((grown.get(phase, 0), noun) for phase, noun in ((_FRAME, "frame"), (_BACKWARD, "backward graph")))
    said = [f"{count} {noun}{'s' * (count > 1)}" for count, noun in known if count]
    return " and ".join(said) or ", ".join(sorted(grown)[:3]) or None


def _count_new(before: tuple[list[float], int] | None, now: tuple[list[float], int]) -> int:
    times, count = now
    return count - before[1] if before is not None and before[0] is times else count
