"""Compile a program with Inductor and return the layout copies that one step of the compiled code makes.

The result has three sources. Kernels that only move data are read from Inductor's schedule, just before it becomes
code. Copies inside library calls are recorded at run time, one recorder region per call; the line of generated code
that made the call gives the call site. Copies outside of compiled graphs, by autograd or between graph breaks, are
recorded without a call site.

Inductor's and AOTAutograd's caches are neither used nor changed here, because a cache hit leaves no schedule to read.
CUDA graphs are left out, because a replay shows no operators. The program is compiled through a separate backend, so
graphs that are already compiled stay unchanged.
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
    # Inductor takes seconds to import, which observing eager does not need.
    from frx_graph.measure.inductor.inductor_backend import ObservingBackend

    backend = ObservingBackend()
    with preserve_state(program, step) as state, functorch_config.patch(enable_autograd_cache=False):
        compiled = torch.compile(program, backend=backend)
        step(compiled)
        state.clear_gradients()
        backend.record(lambda: step(compiled))
    return backend.collect_copies()
