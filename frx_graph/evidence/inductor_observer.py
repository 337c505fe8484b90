"""Compiles a program with Inductor and shows the layout copies that one step of the compiled code makes.

Three things are put together. Kernels that only move data are read from Inductor's schedule, just before it becomes
code. What library calls copy inside is recorded at run time, one recorder region per call, and found in the program
through the line of generated code that made the call. What is copied outside of compiled graphs, by autograd or between
graph breaks, is recorded without a call site.

Inductor's and AOTAutograd's caches are bypassed while the program is compiled here, because after a cache hit there is
no schedule to read; what they hold is neither used nor changed. CUDA graphs are left out, because a replay shows no
operators. The program is compiled through a backend of its own, so what is already compiled of it stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch._functorch import config as functorch_config

from frx_graph.capture.model_state import preserved_state
from frx_graph.evidence.observed_copy import ObservedCopy

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class InductorObservation:
    """One step. `kernels` are the generated kernels of the graphs that ran, in order of their graphs; `graph_calls`
    is how many times compiled graphs were entered."""

    copies: tuple[ObservedCopy, ...]
    kernels: tuple[str, ...]
    graph_calls: int

    @property
    def count(self) -> int:
        """Copies of the step."""
        return len(self.copies)

    @property
    def bytes(self) -> int:
        """Traffic of the copies."""
        return sum(copy.bytes for copy in self.copies)


def observe_inductor(
    program: Callable[P, T],
    step: Callable[[Callable[P, T]], object],
    *,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
) -> InductorObservation:
    """Compile `program` and run `step(compiled)` twice: to compile, and recorded.

    `step` is one step, backward included if there is one; the state of all that it and `program` reach is put back;
    `options` are Inductor's. Raises what compiling and `step` raise, and `EvidenceError` if a profiler is already
    running.
    """
    # Inductor takes seconds to import; whoever only observes eager does not wait for it.
    from frx_graph.evidence.inductor_backend import ObservingBackend

    backend = ObservingBackend(options or {})
    with preserved_state(program, step) as state, functorch_config.patch(enable_autograd_cache=False):
        compiled = torch.compile(program, backend=backend, dynamic=dynamic)
        step(compiled)
        state.clear_gradients()
        backend.record(lambda: step(compiled))
    return InductorObservation(backend.copies(), backend.kernels(), backend.graph_calls)
