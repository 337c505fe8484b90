"""What torch has compiled in this process since a moment: what ran while it did is no measurement of the program.

Every phase of a compilation, of Dynamo's frames, of AOTAutograd's graphs (a backward that is compiled when it is first
run, too), of Inductor's code, of Triton's kernels, of CUDA graphs' recording, is timed by `torch._dynamo.utils
.dynamo_timed`, which keeps a list of seconds for each phase. That the lists grew is the cheapest sign there is: reading
their lengths takes some microseconds, and nothing is hooked in. Running what is compiled already adds nothing to them.
Other signs say less: `get_compilation_metrics()` is a queue of bounded length, `_dynamo.callback` says nothing of
Triton's tuning at run time and is cleared by `torch._dynamo.reset`.

Not seen: kernels that a program gives to Triton itself, outside any compiled graph, and what libraries generate (oneDNN
its kernels).
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
    """The phases timed so far. The lists are torch's own: a phase whose list is another one was reset since."""

    phases: Mapping[str, tuple[list[float], int]]


def compilations() -> Compilations:
    """What has been compiled up to now."""
    # Copied in one step, since another thread may be compiling.
    phases = dict(dynamo_utils.compilation_time_metrics)
    return Compilations({name: (times, len(times)) for name, times in phases.items() if name not in _NOT_COMPILING})


def frames_compiled() -> int:
    """Frames that Dynamo has compiled in this process since it was last reset."""
    return len(dynamo_utils.compilation_time_metrics.get(_FRAME, ()))


def compiled_between(begin: Compilations, end: Compilations) -> str | None:
    """What was compiled between two readings, in a few words; None if nothing was."""
    grown = {name: _new(begin.phases.get(name), now) for name, now in end.phases.items()}
    grown = {name: count for name, count in grown.items() if count}
    if not grown:
        return None
    said = []
    if frames := grown.get(_FRAME, 0):
        said.append(f"{frames} frame{'s' * (frames > 1)}")
    if backwards := grown.get(_BACKWARD, 0):
        said.append(f"{backwards} backward graph{'s' * (backwards > 1)}")
    return " and ".join(said) or ", ".join(sorted(grown)[:3])


def _new(before: tuple[list[float], int] | None, now: tuple[list[float], int]) -> int:
    times, count = now
    return count - before[1] if before is not None and before[0] is times else count
