"""Trace a Dynamo graph to the ATen operators that eager would dispatch, forward and backward.

Unlike AOTAutograd's graphs, these are not functionalised, decomposed or partitioned: a `reshape` that copies appears as
`aten.clone`, `relu_` stays in place, and strides are as eager's kernels make them (`kernel_strides.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

from frx_graph.capture.absent_gpu import are_on_absent_gpu
from frx_graph.capture.absent_gpu_attention import FusedAttention
from frx_graph.capture.call_site import (
    MODEL_PATH,
    UNKNOWN_SITE,
    CallSite,
    get_class_name,
    parse_module_path,
    parse_stack_trace,
    resolve_module_site,
)
from frx_graph.capture.captured_graph import CapturedGraph, GraphInput, InputKind, Phase
from frx_graph.capture.engineless_backward import differentiate, note_end
from frx_graph.capture.kernel_strides import KernelStrides, merge_forced_strides
from frx_graph.capture.tracing_context import disable_guards, hide_from_saved_tensor_hooks, restore_modes
from frx_graph.support.torch_internals import (
    FakeTensor,
    FakeTensorMode,
    TracingContext,
    compile_lock,
    enable_python_dispatcher,
    pytree,
    setup_stacktrace_preservation_hooks,
    trace_without_constants,
    tracing,
)


@dataclass(frozen=True, slots=True)
class Tangent:
    """The gradient that an output of a graph receives: its shape and its strides in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class UntracedGraph:
    """A Dynamo graph with the data that was read while it was compiled. `fakes` are its placeholders' fake values;
    `caller` is the line that called what is compiled, for operators whose own line is in torch's code."""

    graph_id: str
    dynamo: fx.GraphModule
    fakes: Sequence[Any]
    train: bool
    inputs: tuple[GraphInput, ...] = ()
    module_root: str = MODEL_PATH
    parameters: tuple[int, ...] = ()
    caller: CallSite = UNKNOWN_SITE

    def get_fake_mode(self) -> FakeTensorMode:
        """Return the mode of the fake values, or a new one."""
        # Not `detect_fake_mode`: it prefers the backend's fake mode, and these values belong to Dynamo's own.
        return next((fake.fake_mode for fake in self.fakes if isinstance(fake, FakeTensor)), None) or FakeTensorMode()


def trace_eager(
    graph: UntracedGraph, fake_mode: FakeTensorMode, tangents: Sequence[Tangent | None] | None = None
) -> CapturedGraph:
    """Trace a Dynamo graph over its placeholders' fake values. Raises whatever tracing raises.

    `tangents` are the gradients of the outputs. Without them every output that a training step would differentiate gets
    a gradient in the output's own strides, as AOTAutograd assumes.
    """
    forward_nodes: set[str] = set()

    def forward(*args: Any) -> Any:
        return fx.Interpreter(graph.dynamo).run(*args)

    def forward_and_backward(*args: Any) -> Any:
        leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
        ends = [note_end(leaf) for leaf in leaves]
        outputs = forward(*args)
        roots, gradients = _find_roots_and_gradients(pytree.tree_leaves(outputs), tangents)
        if not roots or not leaves:
            return outputs, ()
        absent = are_on_absent_gpu(roots)
        if not absent:
            setup_stacktrace_preservation_hooks([r.grad_fn for r in roots if r.grad_fn is not None])
        proxy_mode = get_proxy_mode()
        assert proxy_mode is not None, "only make_fx calls this"
        forward_nodes.update(node.name for node in proxy_mode.tracer.graph.nodes)
        given = [make() for make in gradients]
        if absent:
            return outputs, differentiate(roots, ends, given)
        return outputs, torch.autograd.grad(roots, leaves, given, allow_unused=True)

    with contextlib.ExitStack() as stack:
        # `make_fx` puts a function in the place of `nn.Module.__call__`, as Dynamo does while it compiles, for all
        # threads: one may put back the other's function.
        stack.enter_context(compile_lock)
        stack.enter_context(hide_from_saved_tensor_hooks())
        # Inside a backend the surrounding tracing context has its own fake mode, which make_fx would pick up.
        stack.enter_context(tracing(TracingContext(fake_mode)))
        stack.enter_context(disable_guards(fake_mode))
        stack.enter_context(fx_traceback.preserve_node_meta())
        # Anomaly mode looks for NaN in gradients, and fake ones have no values.
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        stack.enter_context(restore_modes())
        torch.set_grad_enabled(graph.train or torch.is_grad_enabled())
        function: Callable[..., Any] = forward_and_backward if graph.train else forward
        stack.enter_context(KernelStrides())
        if are_on_absent_gpu(fake for fake in graph.fakes if isinstance(fake, Tensor)):
            stack.enter_context(FusedAttention())
            stack.enter_context(trace_without_constants())
        try:
            aten = make_fx(function, record_module_stack=False)(*graph.fakes)
        except (RuntimeError, TypeError) as error:
            if isinstance(error, RuntimeError) and fake_mode.shape_env is None:
                raise
            # Some eager kernels (`addcmul` of a broadcast operand) take only numbers as sizes, and the fakes of some
            # (upsampling of no images, torch 2.15) fail. The Python kernels that compilers trace do not.
            forward_nodes.clear()
            with enable_python_dispatcher():
                aten = make_fx(function, record_module_stack=False)(*graph.fakes)

    merge_forced_strides(aten.graph)
    sites, phases = _attribute(aten.graph, graph.module_root, forward_nodes, graph.caller)
    output_args = aten.graph.output_node().args[0]
    visible, gradients = output_args if graph.train and isinstance(output_args, (tuple, list)) else (output_args, ())
    return CapturedGraph(
        graph_id=graph.graph_id,
        origin=graph.graph_id,
        train=graph.train,
        aten=aten,
        inputs=graph.inputs,
        sites=sites,
        phases=phases,
        outputs_visible=tuple(n.name for n in pytree.tree_leaves(visible) if isinstance(n, fx.Node)),
        parameters=graph.parameters,
        gradients=_pair_parameter_gradients(aten.graph, graph, gradients),
    )


def _pair_parameter_gradients(aten: fx.Graph, graph: UntracedGraph, gradients: Any) -> tuple[tuple[str, str], ...]:
    """Return pairs of parameter and gradient; gradients are in the order of the inputs that require one."""
    placeholders = zip(aten.find_nodes(op="placeholder"), graph.fakes, strict=False)
    leaves = [node.name for node, fake in placeholders if isinstance(fake, Tensor) and fake.requires_grad]
    parameters = {entry.name for entry in graph.inputs if entry.kind is InputKind.PARAMETER}
    return tuple(
        (leaf, gradient.name)
        for leaf, gradient in zip(leaves, gradients or (), strict=False)
        if leaf in parameters and isinstance(gradient, fx.Node)
    )


def find_backward_roots(outputs: Sequence[Any]) -> list[Tensor]:
    """Return what a training step would differentiate: the only scalar (the loss), else what requires a gradient."""
    candidates = [o for o in outputs if isinstance(o, Tensor) and o.requires_grad and o.grad_fn is not None]
    losses = [o for o in candidates if o.dim() == 0]
    return losses if len(losses) == 1 else candidates


def list_results(outputs: Any) -> list[Any]:
    """Return what a program returns, out of containers that pytree knows, and out of dataclasses."""
    results: list[Any] = []
    for leaf in pytree.tree_leaves(outputs):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            results.extend(list_results([getattr(leaf, part.name) for part in dataclasses.fields(leaf)]))
        else:
            results.append(leaf)
    return results


def run_step(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, train: bool) -> Any:
    """Run one step and return the outputs of the model; with `train`, also run the backward, with gradients of one."""
    with torch.set_grad_enabled(train):
        outputs = model(*args, **kwargs)
        if train:
            roots = find_backward_roots(list_results(outputs))
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    return outputs


def _find_roots_and_gradients(
    outputs: Sequence[Any], tangents: Sequence[Tangent | None] | None
) -> tuple[list[Tensor], list[Callable[[], Tensor]]]:
    """Return the outputs to differentiate, and a function for each that makes its incoming gradient."""
    if tangents is None or len(tangents) != len(outputs):
        differentiated = find_backward_roots(outputs)
        return differentiated, [functools.partial(torch.ones_like, root) for root in differentiated]
    roots: list[Tensor] = []
    gradients: list[Callable[[], Tensor]] = []
    for output, tangent in zip(outputs, tangents, strict=True):
        if tangent is None or not isinstance(output, Tensor) or output.grad_fn is None:
            continue
        roots.append(output)
        alike = tuple(output.shape) == tangent.shape
        strided = functools.partial(output.new_empty_strided, tangent.shape, tangent.strides)
        gradients.append(strided if alike else functools.partial(torch.ones_like, output))
    return roots, gradients


def _attribute(
    graph: fx.Graph, module_root: str, forward_nodes: set[str], caller: CallSite
) -> tuple[dict[str, CallSite], dict[str, Phase]]:
    """Return call site and phase of every node; `forward_nodes` is empty for inference.

    A backward node takes the site of the forward node with its autograd sequence number, unless it has its own line, as
    in the `backward` of a custom `torch.autograd.Function`.
    """
    sites: dict[str, CallSite] = {}
    phases: dict[str, Phase] = {}
    forward_by_sequence: dict[int, CallSite] = {}
    for node in graph.nodes:
        backward = bool(forward_nodes) and node.op == "call_function" and node.name not in forward_nodes
        phases[node.name] = Phase.BACKWARD if backward else Phase.FORWARD
        sequence = node.meta.get("seq_nr")
        if backward:
            own = parse_stack_trace(node.stack_trace)
            sites[node.name] = own if own.line else forward_by_sequence.get(sequence, own)
            continue
        stack = node.meta.get("nn_module_stack") or {}
        module_path = parse_module_path((entry[0] for entry in stack.values()), module_root)
        kind = get_class_name(next(reversed(stack.values()))[1]) if stack else ""
        sites[node.name] = resolve_module_site(parse_stack_trace(node.stack_trace, module_path), kind, caller)
        if node.op == "call_function" and sequence is not None:
            # Operators that autograd does not record share the number of the one before them: the first is the owner.
            forward_by_sequence.setdefault(sequence, sites[node.name])
    return sites, phases
