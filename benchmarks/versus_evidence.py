"""What a compiled step does besides taking time: the layout conversions that are left in it, and its peak memory.

Conversions are seen in two ways. Kernels that Inductor generates only to move data are read from its schedule while it
compiles, and counted as often as a step enters their graph. What libraries convert inside (oneDNN's reorders, ATen's
copies, conversion kernels on a GPU) is recorded while one step runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.utils import fresh_cache
from torch._inductor.virtualized import V
from versus_timing import Step

from frx_graph.capture.captured_graph import Phase
from frx_graph.measure.inductor.inductor_graph import read_schedule
from frx_graph.measure.operators.copy_recorder import CopyRecorder
from frx_graph.measure.operators.operator_events import get_kineto_results, run_profiler


@dataclass(frozen=True, slots=True)
class Conversions:
    """Layout copies of one step, and their traffic in bytes, read plus written."""

    count: int
    bytes: int


class ScheduleReader:
    """Keeps the layout copies of every graph that Inductor compiles inside `compiling`."""

    def __init__(self) -> None:
        self._copies: dict[str, tuple[int, ...]] = {}

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Inside, compiling is cold: Inductor starts with an empty cache, and AOTAutograd's is not used."""
        read: list[tuple[Any, tuple[int, ...]]] = []

        def keep(groups: list[Any]) -> list[Any]:
            found = read_schedule(groups, Phase.FORWARD).copies
            read.append((V.graph, tuple(copy.bytes for copy in found.values())))
            return groups

        with (
            fresh_cache(),
            functorch_config.patch(enable_autograd_cache=False),
            inductor_config.patch(_post_fusion_custom_pass=keep),
        ):
            yield
        # A graph gets its key only when its code is written, after the schedule was read.
        self._copies.update({graph.cache_key: copies for graph, copies in read})

    def conversions(self, step: Step) -> Conversions | None:
        """Run `step`, which is compiled already, and count its layout copies; None if it runs a graph that was not
        compiled inside `compiling`. Raises `EvidenceError` if a profiler is running."""
        entered: list[str] = []
        with (recorder := CopyRecorder()), recorder.open_region("step"), _graphs_entered(entered):
            step()
        if not self._copies.keys() >= set(entered):
            return None
        seen = [copy.bytes for copy in recorder.get_copies("step")]
        seen.extend(size for key in entered for size in self._copies[key])
        return Conversions(len(seen), sum(seen))


@contextlib.contextmanager
def _graphs_entered(keys: list[str]) -> Iterator[None]:
    """Inside, the key of every graph of Inductor's that runs is appended to `keys`."""
    call: Callable[..., Any] = CompiledFxGraph.__call__

    def noted(self: CompiledFxGraph, inputs: Sequence[Any]) -> Any:
        keys.append(str(self.cache_key))
        return call(self, inputs)

    CompiledFxGraph.__call__ = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        CompiledFxGraph.__call__ = call  # type: ignore[method-assign]


def peak_memory(step: Step, device: torch.device) -> int | None:
    """The most bytes that `step` holds at one time on top of what is there when it begins; None where torch does not
    tell. Weights, and copies of weights that were made before, are not in it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with run_profiler("memory is measured", profile_memory=True) as profiler:
        step()
    results = get_kineto_results(profiler)
    if results is None:
        return None
    events: list[Any] = [event for event in results.events() if event.name() == "[memory]"]
    return highest_sum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])


def highest_sum(changes: Sequence[int]) -> int | None:
    """The highest sum of the first so many of `changes`, at least 0; None where there are none to sum."""
    if not changes:
        return None
    held = highest = 0
    for change in changes:
        held += change
        highest = max(highest, held)
    return highest
