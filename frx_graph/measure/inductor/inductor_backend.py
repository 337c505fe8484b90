"""Provide Inductor as a `torch.compile` backend that records schedules and library calls."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import Phase
from frx_graph.measure.inductor.inductor_graph import ExternCall, read_schedule
from frx_graph.measure.operators.copy_recorder import CopyRecorder
from frx_graph.measure.operators.operator_measurement import OUTSIDE, Mechanism, ObservedCopy, ObservedKind, SeenCopy
from frx_graph.support.torch_internals import (
    CompiledFxGraph,
    OpOverload,
    TorchDispatchMode,
    compile_fx,
    compile_fx_inner,
    get_post_fusion_pass,
    has_post_fusion_pass,
    use_post_fusion_pass,
)

_NO_CACHE = {"fx_graph_cache": False, "fx_graph_remote_cache": False, "triton.cudagraphs": False}
_RESULT = re.compile(r"^\s*(?P<name>\w+) = |\bout=(?P<out>\w+)")


class _WatchedGraph:
    """A graph that was compiled: what its schedule showed, and its generated source."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.copies: dict[str, ObservedCopy] = {}
        self.externs: dict[str, ExternCall] = {}
        self.source: list[str] = []

    def find_extern_call(self, line: int, operator: str) -> ExternCall:
        """The library call that line `line` (from 1) of the generated code makes."""
        text = self.source[line - 1] if 0 < line <= len(self.source) else ""
        names = (found["name"] or found["out"] for found in _RESULT.finditer(text))
        return next((self.externs[n] for n in names if n in self.externs), ExternCall(operator, UNKNOWN_SITE))


class ObservingBackend:
    """A `torch.compile` backend: Inductor, with its schedules read on the way.

    Compiled graphs go on running, unwatched, after `record`. Raises `NotImplementedError` on a torch without a hook
    behind Inductor's fusion.
    """

    def __init__(self) -> None:
        if not has_post_fusion_pass():
            raise NotImplementedError("this version of torch does not let Inductor's schedule be read")
        self._recorder = CopyRecorder()
        self._recording = False
        self._entered: list[_WatchedGraph] = []
        self._calls: list[tuple[ExternCall, Phase]] = []

    def __deepcopy__(self, memo: object) -> ObservingBackend:
        # Lightning replaces `torch.compile` by a function that keeps a deep copy of the arguments.
        return self

    def __call__(self, graph: fx.GraphModule, examples: Sequence[Any]) -> Any:
        """Compile one graph."""
        return compile_fx(graph, examples, inner_compile=self._compile, config_patches=_NO_CACHE)

    def record(self, step: Callable[[], object]) -> None:
        """Run `step` with everything recorded."""
        with self._recorder:
            self._recording = True
            self._outside = self._recorder.open_region(OUTSIDE)
            self._outside.__enter__()
            try:
                step()
            finally:
                self._outside.__exit__(None, None, None)
                self._recording = False

    def collect_copies(self) -> tuple[ObservedCopy, ...]:
        """The copies of the recorded step: of generated kernels, of library calls, and outside of compiled graphs."""
        found = [copy for graph in self._entered for copy in graph.copies.values()]
        for index, (call, phase) in enumerate(self._calls):
            found.extend(_make_observed_copy(seen, call, phase) for seen in self._recorder.get_copies(index))
        outside = ExternCall(OUTSIDE, UNKNOWN_SITE)
        found.extend(_make_observed_copy(seen, outside, Phase.FORWARD) for seen in self._recorder.get_copies(OUTSIDE))
        return tuple(found)

    def _compile(self, module: fx.GraphModule, examples: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        compiled = _WatchedGraph(Phase.BACKWARD if kwargs.get("is_backward") else Phase.FORWARD)
        users_pass = get_post_fusion_pass()

        def read(groups: list[Any]) -> list[Any]:
            groups = users_pass(groups) if users_pass is not None else groups
            found = read_schedule(groups, compiled.phase)
            compiled.copies.update(found.copies)
            compiled.externs.update(found.externs)
            return groups

        with use_post_fusion_pass(read):
            output = compile_fx_inner(module, examples, *args, **kwargs)
        # A graph without operators is not compiled and has neither source nor callable.
        if isinstance(output, CompiledFxGraph) and output.current_callable is not None:
            compiled.source = output.source_code.splitlines()
            output.current_callable = self._watch(compiled, output.current_callable)
        return output

    def _watch(self, graph: _WatchedGraph, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(inputs: Any) -> Any:
            if not self._recording:
                return call(inputs)
            self._entered.append(graph)
            self._outside.__exit__(None, None, None)
            try:
                with _ExternTagger(graph, self._recorder, self._calls):
                    return call(inputs)
            finally:
                self._outside = self._recorder.open_region(OUTSIDE)
                self._outside.__enter__()

        return run


class _ExternTagger(TorchDispatchMode):
    """Runs every library call of one graph in a region whose key is its index in `calls`."""

    def __init__(self, graph: _WatchedGraph, recorder: CopyRecorder, calls: list[tuple[ExternCall, Phase]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph, self._recorder, self._calls = graph, recorder, calls

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func` in a separate region."""
        frame = sys._getframe()
        while frame.f_back is not None and "extern_kernels" not in frame.f_globals:
            frame = frame.f_back
        call = self._graph.find_extern_call(frame.f_lineno, str(func.overloadpacket))
        self._calls.append((call, self._graph.phase))
        with self._recorder.open_region(len(self._calls) - 1):
            return func(*args, **(kwargs or {}))


def _make_observed_copy(seen: SeenCopy, call: ExternCall, phase: Phase) -> ObservedCopy:
    kind: ObservedKind = "operator" if seen.mechanism is Mechanism.ATEN else "reorder"
    return ObservedCopy.from_seen(seen, call.operator, kind, seen.role, call.site, phase)
