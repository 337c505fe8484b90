"""Compile a program with Inductor and return the layout copies that one step of the compiled code makes.

Three things are put together. Kernels that only move data are read from Inductor's schedule, just before it becomes
code. What library calls copy inside is recorded at run time, one recorder region per call, and found in the program
through the line of generated code that made the call. What is copied outside of compiled graphs, by autograd or between
graph breaks, is recorded without a call site.

Inductor's and AOTAutograd's caches are bypassed while the program is compiled here, because after a cache hit there is
no schedule to read; what they hold is neither used nor changed. CUDA graphs are left out, because a replay shows no
operators. The program is compiled through a backend of its own, so what is already compiled of it stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from frx_graph.capture.state_snapshot import preserve_state
from frx_graph.measure.operators.operator_measurement import ObservedCopy
from frx_graph.support.torch_internals import functorch_config

P = ParamSpec("P")
T = TypeVar("T")


def observe_inductor(program: Callable[P, T], step: Callable[[Callable[P, T]], object]) -> tuple[ObservedCopy, ...]:
    """Compile `program` and run `step(compiled)` twice: to compile, and recorded; the layout copies of the second.

    `step` is one step, backward included if there is one; `preserve_state` restores the state of it and of `program`.
    Raises what compiling and `step` raise, and `EvidenceError` if a profiler is already running.
    """
    # Inductor takes seconds to import; whoever only observes eager does not wait for it.
    from frx_graph.measure.inductor.inductor_backend import ObservingBackend

    backend = ObservingBackend()
    with preserve_state(program, step) as state, functorch_config.patch(enable_autograd_cache=False):
        compiled = torch.compile(program, backend=backend)
        step(compiled)
        state.clear_gradients()
        backend.record(lambda: step(compiled))
    return backend.collect_copies()
