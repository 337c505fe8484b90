"""Change the memory order of values of a functional graph, and nothing else about the graph.

Operators demand orders for their operands. If a demand is not met, a conversion is inserted, once for each value and
order. Every operator that reads other strides than before is run again on fake tensors, so that the graph's values
describe the result. A graph that cannot be changed as asked is put back as it was.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from frx_graph.errors import RewriteError, summarize_error
from frx_graph.facts.layout import get_dimension_order, is_expanded, make_ordered_strides
from frx_graph.facts.operator_overload import find_aliased_operands
from frx_graph.passes.layouts.dimension_map import Order
from frx_graph.passes.rewrites.layout.conversion import Convert
from frx_graph.passes.rewrites.layout.edits import (
    LayoutEdit,
    compute_copy_order,
    declare_order,
    has_same_strides,
    pin_result,
)
from frx_graph.passes.rewrites.meta_strides.fake_values import (
    find_fake_mode,
    identify_storage,
    number_storages,
    run_fakes_unguarded,
    run_on_fakes,
)
from frx_graph.passes.rewrites.meta_strides.preserve_output_strides import restore_outputs
from frx_graph.passes.rewrites.meta_strides.unreliable_strides import (
    find_misread_gradient,
    fix_fake_strides,
    has_unreliable_meta_strides,
    shares_operand_memory,
)
from frx_graph.passes.rewrites.meta_strides.unreliable_values import has_one_order
from frx_graph.support.size_hint import get_shape_hint, get_stride_hint
from frx_graph.support.torch_internals import pytree


@dataclass(frozen=True, slots=True)
class OrderConstraint:
    """An order that an operator wants a value in, with any gaps, or `exactly`: dense, dimensions of size 1 included."""

    order: Order
    exactly: bool = False


Demands: TypeAlias = Mapping[str, Mapping[str, OrderConstraint]]
"""Operator → value that it reads → its wanted order; all by node name."""


class Reads(enum.Enum):
    """The strides that an operator can run on, for operands without a demand."""

    ANY = "any"
    ORDER = "order"
    """The former order of dimensions; gaps may vanish."""
    STRIDES = "strides"
    """The former strides."""


ReadsBy: TypeAlias = Callable[[str], Reads]
"""Returns the strides that the operator of this name can run on."""


def relayout(
    graph: fx.Graph,
    demands: Demands,
    *,
    convert: Convert,
    reads: ReadsBy,
    freed: Collection[str] = (),
    kept_outputs: Collection[str] = (),
    given: Mapping[str, Tensor] = MappingProxyType({}),
    made: Mapping[str, Order] = MappingProxyType({}),
    pins: bool = False,
    doubtful: Collection[str] = (),
) -> tuple[str, ...]:
    """Meet `demands`; returns the names of the inserted conversions, in order.

    `freed` names copies with an explicit memory format that from now on keep the order of their source. `kept_outputs`
    names the outputs whose strides must not change. `given` holds, by name, the former values of inputs whose strides
    have changed already. `made` holds the orders in which generated loops are to make results that the operators' own
    kernels, and so their fakes, make in one order only.

    With `pins` the operators run as they are. Results whose fakes have unreliable strides are brought to the predicted
    ones. Outputs among `doubtful` had uncertain strides from the first.
    Without `pins`, Inductor compiles the graph. Raises `RewriteError`, with the graph unchanged, if an operator cannot
    run on its new strides.
    """
    mode = find_fake_mode(graph)
    edit = LayoutEdit(graph, convert, frozenset(graph.nodes), pins, doubtful)
    apart = None if pins else predict_inductor_storages(graph)
    for node in graph.find_nodes(op="placeholder"):
        if node.name in given:
            edit.before[node] = given[node.name]
    try:
        with run_fakes_unguarded(mode):
            for node in list(graph.nodes):
                if node.op == "output":
                    restore_outputs(edit, node, kept_outputs)
                elif node.op == "call_function":
                    if node.name in freed:
                        edit.free_copy(node)
                    _update_node(edit, node, demands.get(node.name, {}), reads(node.name))
                    if any(source in edit.before or source in edit.behind for source in node.all_input_nodes):
                        edit.behind.add(node)
                    if pins and node in edit.before and has_unreliable_meta_strides(node):
                        pin_result(edit, node)
                    if node.name in made:
                        declare_order(edit, node, made[node.name])
        if not pins and predict_inductor_storages(graph) != apart:
            raise RewriteError("Inductor would return copies of one value in one memory")
    except RewriteError:
        edit.undo()
        raise
    # A fake operator may refuse strides with any exception.
    except Exception as error:
        edit.undo()
        raise RewriteError(f"the graph cannot be laid out as asked: {summarize_error(error)}") from error
    return tuple(conversion.name for conversion in edit.conversions.values())


def _update_node(edit: LayoutEdit, node: fx.Node, demand: Mapping[str, OrderConstraint], reads: Reads) -> None:
    changed = node in edit.freed
    # A conversion would be written in their place.
    written = set(find_aliased_operands(node, written=True))
    for source in node.all_input_nodes:
        value = source.meta.get("val")
        if not isinstance(value, Tensor):
            changed = changed or source in edit.before
            continue
        if source in written:
            continue
        original = edit.before.get(source, value)
        moves = source in edit.before and not has_one_order(get_shape_hint(value))
        if reads is not Reads.ANY and moves and edit.has_uncertain_strides(source):
            raise RewriteError(f"{node.name} reads {source.name}, whose strides were uncertain from the first")
        wanted = demand.get(edit.find_original_name(source))
        if wanted is not None and not _is_satisfied(value, wanted):
            value = edit.convert_for(source, wanted.order, node).meta["val"]
        elif wanted is None and reads is not Reads.ANY and not has_same_strides(value, get_stride_hint(original)):
            order = compute_copy_order(source, original, gaps=reads is Reads.ORDER)
            if not has_same_strides(value, make_ordered_strides(get_shape_hint(value), order)):
                value = edit.convert_for(source, order, node).meta["val"]
        # A view of what has moved has the same strides in other memory; who shares whose is read from the fakes. Of
        # what has no elements a kernel may make other strides than its fake.
        moved = source in edit.before and (shares_operand_memory(node) or 0 in get_shape_hint(value))
        changed = changed or moved or get_stride_hint(value) != get_stride_hint(original)
    if changed and edit.pins and (gradient := find_misread_gradient(node)) is not None:
        image = node.args[1]
        assert isinstance(image, fx.Node)
        edit.convert_for(gradient, compute_copy_order(image, image.meta["val"], gaps=True), node)
    if changed:
        value = _check_unchanged(node, run_on_fakes(node))
        edit.set_value(node, fix_fake_strides(node, value) if edit.pins else value)


def _is_satisfied(value: Tensor, wanted: OrderConstraint) -> bool:
    shape, strides = get_shape_hint(value), get_stride_hint(value)
    if wanted.exactly:
        return strides == make_ordered_strides(shape, wanted.order)
    places, present = (
        [d for d in order if shape[d] != 1] for order in (wanted.order, get_dimension_order(shape, strides))
    )
    return present == places and not is_expanded(shape, strides)


def _check_unchanged(node: fx.Node, value: Any) -> Any:
    """Return `value` if it equals the node's former value in all but strides. Raises `RewriteError` otherwise."""
    old, new = (list(map(_describe_without_strides, pytree.tree_leaves(one))) for one in (node.meta["val"], value))
    if old != new:
        raise RewriteError(f"{node.name} gives something else on other strides")
    return value


def _describe_without_strides(value: Any) -> object:
    return (get_shape_hint(value), value.dtype, value.device) if isinstance(value, Tensor) else type(value)


def predict_inductor_storages(graph: fx.Graph) -> list[int | None]:
    """Return for each output the number of the memory that Inductor returns it in; None for a value without one.

    Inductor drops a clone with its source's strides if the source is not an output. It checks each clone separately: it
    drops both of two returned clones of one value, and returns one memory twice (torch 2.15, `remove_noop_ops`). Copies
    in an explicit order become such clones if a rewrite gives the value that order.
    """
    values = {node: node.meta.get("val") for node in graph.nodes}
    outputs = [values[node] for node in pytree.tree_leaves(graph.output_node().args) if isinstance(node, fx.Node)]
    returned = {identify_storage(value) for value in outputs}
    kept = returned | {identify_storage(values[node]) for node in graph.find_nodes(op="placeholder")}
    instead: dict[int | None, int | None] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        copy, source = values[node], values[node.args[0]]
        if len({(get_shape_hint(value), get_stride_hint(value), value.dtype) for value in (copy, source)}) > 1:
            continue
        read = instead.get(identify_storage(source), identify_storage(source))
        if identify_storage(copy) not in returned or read not in kept:
            instead[identify_storage(copy)] = read
    return number_storages(instead.get(storage, storage) for storage in map(identify_storage, outputs))
