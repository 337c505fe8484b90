"""Record the graphs of a live `torch.compile` as Dynamo hands them to the backend."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from frx_graph.capture.aten_trace import Tangent, UntracedGraph, trace_eager
from frx_graph.capture.call_site import (
    MODEL_PATH,
    CallSite,
    find_compiled_call,
    parse_module_path,
    parse_stack_trace,
    resolve_module_site,
)
from frx_graph.capture.captured_graph import (
    Capture,
    CapturedGraph,
    CaptureFailure,
    GraphBreak,
    GraphInput,
    InputKind,
    Recompile,
)
from frx_graph.capture.dynamo_events import convert_break_reason, get_recompile_reason, list_unreported
from frx_graph.capture.graph_signature import find_attribute
from frx_graph.errors import summarize_error
from frx_graph.support.torch_internals import CompileContext, FakeTensor, get_dynamo_source

_RECOMPUTED = "the backward computes its operators again and repeats their copies; only the forward's are counted"
_SELF_SOURCE = re.compile(r"^L\['(?P<local>[^']+)'\](?P<rest>.*)$")


class GraphRecorder:
    """Collect what Dynamo compiles: graphs, breaks, recompiles, and what could not be traced.

    `map_parameter_paths` maps `id(parameter)` to its dotted path in the root module. It names the submodule in which a
    graph begins after a graph break. Real tensors are not kept.
    """

    def __init__(self, origin: str, parameter_paths: Mapping[int, str] | None = None) -> None:
        self._origin = origin
        self._epoch = 0
        self._ids: set[str] = set()
        self._parameter_paths = dict(parameter_paths or {})
        self._graphs: list[CapturedGraph] = []
        self._breaks: dict[GraphBreak, GraphBreak] = {}
        self._recompiles: list[Recompile] = []
        self._failures = [CaptureFailure(subject, reason) for subject, reason in list_unreported()]

    def record(self, dynamo: fx.GraphModule, example_inputs: Sequence[Any], inner: str) -> str:
        """Note and trace a Dynamo graph that `inner` compiles, with a backward if needed; return the graph's id."""
        graph = self.note(dynamo, example_inputs)
        self.trace(graph, inner=inner)
        return graph.graph_id

    def note(self, dynamo: fx.GraphModule, example_inputs: Sequence[Any]) -> UntracedGraph:
        """Read what is known only while Dynamo compiles: the id, the inputs, why the graph ended or was recompiled."""
        graph_id = self._make_unique_id(str(CompileContext.current_compile_id() or f"graph/{len(self._graphs)}"))
        self._record_events(dynamo, graph_id)
        placeholders = list(dynamo.graph.find_nodes(op="placeholder"))
        fakes = tuple(node.meta.get("example_value") for node in placeholders)
        return UntracedGraph(
            graph_id=graph_id,
            dynamo=dynamo,
            fakes=fakes,
            inputs=tuple(
                _build_graph_input(node, f"arg{index}_1", example, self._parameter_paths)
                for index, (node, example) in enumerate(zip(placeholders, example_inputs, strict=True))
            ),
            module_root=self._find_module_root(placeholders, example_inputs),
            parameters=tuple(id(example) for example in example_inputs if isinstance(example, nn.Parameter)),
            train=torch.is_grad_enabled() and any(isinstance(f, Tensor) and f.requires_grad for f in fakes),
            caller=find_compiled_call(sys._getframe()),
        )

    def trace(
        self, graph: UntracedGraph, tangents: Sequence[Tangent | None] | None = None, calls: int = 1, inner: str = ""
    ) -> None:
        """Trace a noted graph; a graph that cannot be traced becomes a failure, never an exception."""
        reason = explain_unanalysable(graph.dynamo)
        if reason is not None:
            self.fail(f"graph {graph.graph_id}", reason, _find_first_site(graph.dynamo, graph.caller))
            return
        try:
            captured = trace_eager(graph, graph.get_fake_mode(), tangents)
        except Exception as error:  # noqa: BLE001 - tracing runs arbitrary operators; the program must go on
            self.fail(f"graph {graph.graph_id}", summarize_error(error), _find_first_site(graph.dynamo, graph.caller))
        else:
            self._graphs.append(replace(captured, origin=self._origin, calls=calls, inner=inner))
            for site in _find_checkpoints(graph.dynamo, graph.caller) if graph.train else ():
                self.fail("activation checkpoint", _RECOMPUTED, site)

    def fail(self, subject: str, reason: str, site: CallSite | None = None) -> None:
        """Note a part of the program that was not captured."""
        self._failures.append(CaptureFailure(subject, reason, site))

    def note_breaks(self, breaks: Iterable[GraphBreak]) -> None:
        """Note graph breaks; only the first at a place is kept, with the graph that ended there."""
        for found in breaks:
            self._breaks.setdefault(found, found)

    def capture(self) -> Capture:
        """Return everything recorded so far."""
        return Capture(tuple(self._graphs), tuple(self._breaks), tuple(self._recompiles), tuple(self._failures))

    def _make_unique_id(self, compile_id: str) -> str:
        """Return Dynamo's compile id, behind an epoch after `torch._dynamo.reset()`, which restarts the count."""
        if compile_id in self._ids:
            self._epoch += 1
            self._ids.clear()
        self._ids.add(compile_id)
        return f"{self._epoch}:{compile_id}" if self._epoch else compile_id

    def _find_module_root(self, placeholders: Sequence[fx.Node], example_inputs: Sequence[Any]) -> str:
        """Return `model`, or the path of the submodule whose frame this graph is, found through a parameter."""
        for node, example in zip(placeholders, example_inputs, strict=True):
            known = self._parameter_paths.get(id(example))
            local = _SELF_SOURCE.match(_get_source_name(node))
            if known is None or local is None or local["local"].startswith("___stack"):
                continue
            own = parse_module_path([f"L['x']{_strip_member_dicts(local['rest'])}"], root="").strip(".")
            if known == own:
                return MODEL_PATH
            if known.endswith(f".{own}"):
                return f"model.{known[: -len(own) - 1]}"
        return MODEL_PATH

    def _record_events(self, dynamo: fx.GraphModule, graph_id: str) -> None:
        reason = getattr(dynamo, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            self.note_breaks([convert_break_reason(reason, graph_id)])
        recompile = get_recompile_reason()
        if recompile:
            self._recompiles.append(Recompile(graph_id, recompile))


def _get_source_name(node: fx.Node) -> str:
    source = get_dynamo_source(node)
    if source is None:
        return ""
    name = source.name
    return str(name() if callable(name) else name)


def _strip_member_dicts(source: str) -> str:
    """Remove the dictionaries that hold the members of modules from an expression of Dynamo."""
    return source.replace("._parameters", "").replace("._buffers", "").replace("._modules", "")


def _build_graph_input(node: fx.Node, name: str, example: Any, parameter_paths: Mapping[int, str]) -> GraphInput:
    source = _get_source_name(node)
    if isinstance(example, nn.Parameter):
        kind = InputKind.PARAMETER
    elif "._buffers[" in source:
        kind = InputKind.BUFFER
    else:
        kind = InputKind.ARGUMENT
    known = parameter_paths.get(id(example))
    if known is not None:
        path = f"model.{known}"
    elif kind is InputKind.ARGUMENT:
        local = _SELF_SOURCE.match(source)
        path = f"{local['local']}{local['rest']}" if local else source or node.name
    else:
        path = parse_module_path([_strip_member_dicts(source)])
    return GraphInput(name=name, path=path, kind=kind)


def _find_checkpoints(dynamo: fx.GraphModule, caller: CallSite) -> list[CallSite]:
    """Return the calls of `torch.utils.checkpoint`; Dynamo makes the same operator of both variants."""
    nodes = dynamo.graph.find_nodes(op="call_function", target=torch.ops.higher_order.tag_activation_checkpoint)
    return list(dict.fromkeys(resolve_module_site(parse_stack_trace(node.stack_trace), "", caller) for node in nodes))


def _find_first_site(dynamo: fx.GraphModule, caller: CallSite) -> CallSite:
    sites = (parse_stack_trace(n.stack_trace) for n in dynamo.graph.nodes if n.op.startswith("call"))
    return next((site for site in sites if site.line), caller)


def explain_unanalysable(dynamo: fx.GraphModule) -> str | None:
    """Return the reason why a graph cannot be analysed; None if it can."""
    for node in dynamo.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, Tensor) and value.is_nested:
            return "it works on nested tensors, whose rows have separate strides"
    held = [find_attribute(dynamo, node) for node in dynamo.graph.find_nodes(op="get_attr")]
    own = sum(isinstance(value, Tensor) and not isinstance(value, FakeTensor) for value in held)
    if own:
        return (
            f"it holds {own} tensors that are not its inputs, as an optimizer's compiled step does, "
            "or a frozen model whose tensors are not buffers; register those as buffers, "
            "compile the model, and leave optimizer.step to torch.compile without frx"
        )
    return None
