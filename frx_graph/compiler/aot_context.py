"""Read AOTAutograd's data about the inputs and outputs of the graph that it is compiling."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from frx_graph.support.torch_internals import CompileContext, TracingContext

_INPUT_VIEWS = frozenset({"alias_of_input", "is_input"})
"""Names of AOTAutograd's `OutputType`."""


def get_graph_id() -> str:
    """Return the compile id of the graph that is being compiled."""
    return str(CompileContext.current_compile_id() or "graph")


def find_static_inputs(module: fx.GraphModule, backward: bool) -> frozenset[str]:
    """Return the placeholders of parameters and buffers; a backward names the forward's third input `primals_3`."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return frozenset()
    static = set(context.fw_metadata.static_input_indices)
    placeholders = [node.name for node in module.graph.find_nodes(op="placeholder")]
    if backward:
        return frozenset(placeholders).intersection(f"primals_{index + 1}" for index in static)
    return frozenset(name for index, name in enumerate(placeholders) if index in static)


def list_weight_inputs(module: fx.GraphModule) -> tuple[str, ...]:
    """Return the placeholders that become constants if Inductor freezes the graph: weights that it neither writes nor
    returns views of. A branch that the graph calls has none."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None or context.params_flat_unwrap_subclasses is None:
        return ()
    metadata, placeholders = context.fw_metadata, module.graph.find_nodes(op="placeholder")
    if metadata.tokens or len(placeholders) != len(metadata.input_info):
        return ()
    returned = {info.base_idx for info in metadata.output_info if info.output_type.name in _INPUT_VIEWS}
    weights = itertools.islice(enumerate(metadata.input_info), len(context.params_flat_unwrap_subclasses))
    return tuple(
        placeholders[index].name
        for index, info in weights
        if not (info.mutates_data or info.mutates_metadata or index in returned)
    )


def find_visible_outputs(module: fx.GraphModule, backward: bool) -> list[str]:
    """Return the outputs that the program sees. The others are saved for a backward compiled for their strides."""
    context = TracingContext.try_get()
    outputs = list_output_names(module)
    if backward or context is None or context.fw_metadata is None:
        return outputs
    metadata = context.fw_metadata
    return outputs[: len(metadata.tokens) + metadata.num_forward_returns]


def report_output_strides(module: fx.GraphModule) -> None:
    """Report the strides of the forward's outputs to AOTAutograd, which compiles the backward for them."""
    context = TracingContext.try_get()
    if context is None or context.output_strides is None:
        return
    # Effect tokens come first, and are not counted.
    tokens = 0 if context.fw_metadata is None else len(context.fw_metadata.tokens)
    context.output_strides.extend(list_output_strides(module)[tokens:])


def list_output_names(module: fx.GraphModule) -> list[str]:
    """Return the names of the graph's outputs, in order; empty for an output that is not a node."""
    return [node.name if isinstance(node, fx.Node) else "" for node in _list_output_nodes(module)]


def list_output_strides(module: fx.GraphModule) -> list[tuple[Any, ...] | None]:
    """Return the strides of the graph's outputs, in order; None for an output that is not a tensor."""
    values = [node.meta.get("val") if isinstance(node, fx.Node) else None for node in _list_output_nodes(module)]
    return [tuple(value.stride()) if isinstance(value, Tensor) else None for value in values]


def _list_output_nodes(module: fx.GraphModule) -> Sequence[Any]:
    outputs = module.graph.output_node().args[0]
    assert isinstance(outputs, (list, tuple)), "AOTAutograd's graphs return a flat list"
    return outputs
