"""Changes in which order values of a functional graph lie in memory, and nothing else about the graph.

Operators demand orders for what they read; where a demand is not met a conversion is inserted, once for each value and
order. Every operator that reads other strides than before is run again on fake tensors, so that the graph's values tell
the truth about the result. A graph that cannot be changed as asked is put back as it was.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from frx_graph.errors import RewriteError, first_line
from frx_graph.facts.layout import (
    CHANNELS_LAST_ORDER,
    dimension_order,
    inverse_order,
    is_dense,
    is_expanded,
    strides_for_order,
)
from frx_graph.facts.size_hint import shape_hint, stride_hint
from frx_graph.passes.rewrites.conversion import Convert, aten_conversion, aten_copy, aten_pin, exact_strides
from frx_graph.passes.rewrites.doubtful_strides import (
    as_run,
    is_doubtful,
    is_view,
    lies_in_operand,
    lies_otherwise_as_traced,
    misread_gradient,
)
from frx_graph.passes.rewrites.doubtful_values import has_one_order
from frx_graph.passes.rewrites.fake_values import fake_mode_of, run_on_fakes, running_fakes
from frx_graph.passes.rewrites.merged_copies import memories_under_inductor
from frx_graph.rules.dimension_map import Order, named_order, plain_order
from frx_graph.traced_strides import noted_strides


@dataclass(frozen=True, slots=True)
class Wanted:
    """An order that an operator wants a value in: whatever gaps it has, or, `exactly`, the dense strides of that order,
    those of dimensions of size 1 included."""

    order: Order
    exactly: bool = False


Demands: TypeAlias = Mapping[str, Mapping[str, Wanted]]
"""Operator → value that it reads → how it wants it; all by node name."""


class Reads(enum.Enum):
    """On which strides an operator can run, for what it is not demanded to read in another order."""

    ANY = "any"
    ORDER = "order"
    """The dimensions in the order that they had; where there were gaps there need be none."""
    STRIDES = "strides"
    """Those that it was given before."""


ReadsBy: TypeAlias = Callable[[str], Reads]
"""What the operator of this name can run on."""


@dataclass
class _Edit:
    """What has been done to a graph so far, and how to undo it. `before` holds the values that changed nodes had,
    `behind` is what those reach."""

    graph: fx.Graph
    convert: Convert
    original: frozenset[fx.Node]
    pins: bool
    doubtful: Collection[str]
    kernels_make: Mapping[str, Order]
    before: dict[fx.Node, Any] = field(default_factory=dict)
    behind: set[fx.Node] = field(default_factory=set)
    conversions: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = field(default_factory=dict)
    rerouted: list[tuple[fx.Node, fx.Node, fx.Node]] = field(default_factory=list)
    freed: dict[fx.Node, Any] = field(default_factory=dict)
    pinned: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def name_of(self, node: fx.Node) -> str:
        """The name that the value had in the graph as it was given."""
        return self.pinned.get(node, node).name

    def cannot_bring_back(self, node: fx.Node) -> bool:
        """True where nobody knows how the value lay when the graph was run as it was given."""
        return self.pins and self.name_of(node) in self.doubtful

    def set_value(self, node: fx.Node, value: Any) -> None:
        self.before.setdefault(node, node.meta["val"])
        node.meta["val"] = value

    def reroute(self, reader: fx.Node, source: fx.Node, conversion: fx.Node) -> None:
        reader.replace_input_with(source, conversion)
        self.rerouted.append((reader, source, conversion))

    def free(self, node: fx.Node) -> None:
        self.freed[node] = node.kwargs
        node.kwargs = {**node.kwargs, "memory_format": torch.preserve_format}

    def undo(self) -> None:
        for reader, source, conversion in reversed(self.rerouted):
            reader.replace_input_with(conversion, source)
        for node, kwargs in self.freed.items():
            node.kwargs = kwargs
        for node in reversed(self.graph.nodes):
            if node not in self.original:
                self.graph.erase_node(node)
        for node, value in self.before.items():
            if node.op != "placeholder":
                node.meta["val"] = value


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
    kernels_make: Mapping[str, Order] = MappingProxyType({}),
    pins: bool = False,
    doubtful: Collection[str] = (),
) -> tuple[str, ...]:
    """Meet `demands`; returns the names of the conversions that were inserted, in order.

    `freed` names copies that are told a memory format and from now on keep the order of what they copy. `kept_outputs`
    names the outputs of the graph whose strides must not change; `given` holds, by name, what inputs were whose strides
    have changed already. `made` holds the orders in which loops that a compiler writes are to make results that the
    operators' own kernels, and so their fakes, make in one order only. With `pins` the operators will run as they
    stand, and results whose strides their fakes cannot be trusted with are brought to what was predicted: what
    `kernels_make`, of results that it names, or else what fakes say; of outputs among `doubtful`, which may have lain
    otherwise from the first, that is not known. Without, Inductor makes code of them. Raises `RewriteError`, the graph
    left as it was, where an operator cannot run on the strides that it would get.
    """
    unknown = next(filter(_is_unknown, graph.nodes), None) if pins else None
    if unknown is not None:
        raise RewriteError(f"{unknown.name} lies otherwise than its fake, and so does what is behind it")
    mode = fake_mode_of(graph)
    edit = _Edit(graph, convert, frozenset(graph.nodes), pins, doubtful, kernels_make)
    apart = None if pins else memories_under_inductor(graph)
    for node in graph.find_nodes(op="placeholder"):
        if node.name in given:
            edit.before[node] = given[node.name]
    try:
        with running_fakes(mode):
            for node in list(graph.nodes):
                if node.op == "output":
                    _restore_outputs(edit, node, kept_outputs)
                elif node.op == "call_function":
                    if node.name in freed:
                        edit.free(node)
                    _relayout_node(edit, node, demands.get(node.name, {}), reads(node.name))
                    if any(source in edit.before or source in edit.behind for source in node.all_input_nodes):
                        edit.behind.add(node)
                    if pins and node in edit.before and is_doubtful(node):
                        _pin(edit, node)
                    if node.name in made:
                        _say(edit, node, made[node.name])
        if not pins and memories_under_inductor(graph) != apart:
            raise RewriteError("Inductor would return copies of one value in one memory")
    except RewriteError:
        edit.undo()
        raise
    # A fake operator says "not on these strides" with whatever it likes.
    except Exception as error:
        edit.undo()
        raise RewriteError(f"the graph cannot be laid out as asked: {first_line(error)}") from error
    return tuple(conversion.name for conversion in edit.conversions.values())


def same_strides(value: Tensor, strides: Collection[int]) -> bool:
    """True if `value` has these strides (hints where they are symbolic), dimensions of size 1 aside."""
    pairs = zip(shape_hint(value), stride_hint(value), strides, strict=True)
    return 0 in shape_hint(value) or all(n == 1 or have == want for n, have, want in pairs)


def _relayout_node(edit: _Edit, node: fx.Node, demand: Mapping[str, Wanted], reads: Reads) -> None:
    changed = node in edit.freed
    written = _written(node)
    for source in node.all_input_nodes:
        value = source.meta.get("val")
        if not isinstance(value, Tensor):
            changed = changed or source in edit.before
            continue
        if source in written:
            continue
        original = edit.before.get(source, value)
        moves = source in edit.before and not has_one_order(shape_hint(value))
        if reads is not Reads.ANY and moves and edit.cannot_bring_back(source):
            raise RewriteError(f"{node.name} reads {source.name}, which may lie otherwise than its fake from the first")
        wanted = demand.get(edit.name_of(source))
        if wanted is not None and not _satisfies(value, wanted):
            value = _converted(edit, source, wanted.order, node).meta["val"]
        elif wanted is None and reads is not Reads.ANY and not same_strides(value, stride_hint(original)):
            order = _order_of(source, original, gaps=reads is Reads.ORDER)
            if not same_strides(value, strides_for_order(shape_hint(value), order)):
                value = _converted(edit, source, order, node).meta["val"]
        # A view of what has moved has the same strides in other memory; who shares whose is read from the fakes. Of
        # what has no elements a kernel may make other strides than its fake.
        moved = source in edit.before and (lies_in_operand(node) or 0 in shape_hint(value))
        changed = changed or moved or stride_hint(value) != stride_hint(original)
    if changed and edit.pins and (gradient := misread_gradient(node)) is not None:
        image = node.args[1]
        assert isinstance(image, fx.Node)
        _converted(edit, gradient, _order_of(image, image.meta["val"], gaps=True), node)
    if changed:
        value = _checked(node, run_on_fakes(node))
        edit.set_value(node, as_run(node, value) if edit.pins else value)


def _written(node: fx.Node) -> set[fx.Node]:
    """The operands that the operator writes into: a conversion would be written in their place."""
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return set()
    schema = zip(node.target._schema.arguments, node.args, strict=False)
    return {
        value
        for argument, value in schema
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node)
    }


def _satisfies(value: Tensor, wanted: Wanted) -> bool:
    shape, strides = shape_hint(value), stride_hint(value)
    if wanted.exactly:
        return strides == strides_for_order(shape, wanted.order)
    places = [dim for dim in wanted.order if shape[dim] != 1]
    return [dim for dim in dimension_order(shape, strides) if shape[dim] != 1] == places and not is_expanded(
        shape, strides
    )


def _restore_outputs(edit: _Edit, output: fx.Node, kept: Collection[str]) -> None:
    shared = _sharing([edit.before.get(node, node.meta.get("val")) for node in _leaves(output)])
    for source in output.all_input_nodes:
        original = _returned(edit, source)
        # As its fake says it has not changed; what it is made of has.
        if original is None and source in edit.behind and edit.cannot_bring_back(source):
            original = source.meta["val"]
        if edit.name_of(source) not in kept or original is None:
            continue
        ours = source
        if not same_strides(source.meta["val"], stride_hint(original)):
            ours = _converted(edit, source, _order_of(source, original), output)
        if edit.pins and 0 in shape_hint(original):
            # Neither those that it makes now nor those that it made before are what its fake says.
            raise RewriteError(f"{source.name} is returned without elements, in strides that only running it tells")
        if edit.cannot_bring_back(source) and not (has_one_order(shape_hint(original)) and _is_new(original)):
            raise RewriteError(f"{source.name} is returned, and may lie otherwise than its fake from the first")
        if stride_hint(ours.meta["val"]) != stride_hint(original):
            # What is left are strides of dimensions of size 1, which callers can see though they mean nothing.
            with edit.graph.inserting_before(output):
                exact = exact_strides(edit.graph, ours, original)
            if exact is None:
                raise RewriteError(f"{source.name} is returned with symbolic strides that cannot be given back")
            edit.reroute(output, ours, exact)
            ours = exact
        if edit.pins and is_view(ours) and not is_view(edit.pinned.get(source, source)):
            # Autograd lets nobody write into a view that a compiled graph returns.
            with edit.graph.inserting_before(output):
                own = aten_copy(edit.graph, ours)
            edit.reroute(output, ours, own)
    if _sharing([node.meta.get("val") for node in _leaves(output)]) != shared:
        raise RewriteError("outputs that share memory would be returned in memory of their own")


def _is_new(value: Tensor) -> bool:
    """True for the strides that a new tensor of that shape has: what lies otherwise than its fake says lies so."""
    shape = shape_hint(value)
    return stride_hint(value) == strides_for_order(shape, plain_order(shape))


def _returned(edit: _Edit, source: fx.Node) -> Tensor | None:
    """What an output was, in strides; None where nothing has changed. The graph's own values may have been computed
    again since it was traced."""
    original: Tensor | None = edit.before.get(source)
    strides, value = noted_strides(source), source.meta["val"]
    if strides is None or strides == (value if original is None else original).stride():
        return original
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)


def _leaves(output: fx.Node) -> list[fx.Node]:
    return [node for node in pytree.tree_leaves(output.args) if isinstance(node, fx.Node)]


def _sharing(outputs: Sequence[Any]) -> list[int | None]:
    """For each output the number of the memory that it lies in, counted from the first; None for what has none."""
    numbers: dict[int, int] = {}
    return [
        numbers.setdefault(value.untyped_storage()._cdata, len(numbers)) if isinstance(value, Tensor) else None
        for value in outputs
    ]


def _is_unknown(node: fx.Node) -> bool:
    # What reads it by `pin_views` knows.
    return lies_otherwise_as_traced(node) and any(
        reader.target is not torch.ops.aten.contiguous.default for reader in node.users
    )


def _pin(edit: _Edit, node: fx.Node) -> None:
    """Let what reads `node` read it with the strides that are predicted; with those that it had before where they mean
    the same."""
    value = node.meta["val"]
    if (order := edit.kernels_make.get(node.name)) is not None:
        value = value.permute(order).contiguous().permute(inverse_order(order))
    original = edit.before.get(node, value)
    if same_strides(value, stride_hint(original)):
        value = original
    if 0 in shape_hint(value) or not is_dense(shape_hint(value), stride_hint(value)):
        return
    with edit.graph.inserting_before(node.next):
        pin = aten_pin(edit.graph, node, _order_of(node, value))
        exact = exact_strides(edit.graph, pin, value)
    if exact is None and 1 in shape_hint(value):
        raise RewriteError(f"{node.name} has a size that is 1 in the example only, and strides that depend on it")
    pin = exact or pin
    _put_behind(edit, node, pin, original)


def _say(edit: _Edit, node: fx.Node, order: Order) -> None:
    """Let what reads `node` take it for laid out in `order`. Inductor ignores what a copy is told, and writes none; but
    it goes by the fakes, and computes them again from the graph."""
    value = node.meta["val"]
    if not same_strides(value, strides_for_order(shape_hint(value), order)):
        with edit.graph.inserting_before(node.next):
            said = aten_conversion(edit.graph, node, order)
        _put_behind(edit, node, said, edit.before.get(node, value))


def _put_behind(edit: _Edit, node: fx.Node, stand_in: fx.Node, original: Any) -> None:
    """All that reads `node`, which was `original`, reads what was made of it."""
    edit.pinned[stand_in] = node
    edit.before[stand_in] = original
    for reader in [reader for reader in node.users if reader in edit.original]:
        edit.reroute(reader, node, stand_in)


def _order_of(node: fx.Node, value: Tensor, *, gaps: bool = False) -> Order:
    """The order that a copy of `node` needs to lie as `value` does, or, with `gaps`, as it does but for those."""
    shape, strides = shape_hint(value), stride_hint(value)
    if is_expanded(shape, strides) or not (gaps or is_dense(shape, strides)):
        raise RewriteError(f"{node.name} has gaps in memory that a copy would not have")
    return dimension_order(shape, strides)


def _converted(edit: _Edit, source: fx.Node, order: Order, reader: fx.Node) -> fx.Node:
    """The conversion of `source` that `reader` now reads in its place; made once, before its first reader."""
    shape = shape_hint(source.meta["val"])
    if order not in (plain_order(shape), CHANNELS_LAST_ORDER.get(len(shape))):
        order = named_order(shape, order)
    strides = strides_for_order(shape, order)
    conversion = edit.conversions.get((source, strides))
    if conversion is None:
        with edit.graph.inserting_before(reader):
            conversion = edit.conversions[source, strides] = edit.convert(edit.graph, source, order)
        if not same_strides(conversion.meta["val"], strides):
            raise RewriteError(f"{source.name} cannot be brought to strides {strides}")
    edit.reroute(reader, source, conversion)
    return conversion


def _checked(node: fx.Node, value: Any) -> Any:
    """`value`, if it is what the node gave before in all but strides."""
    old, new = pytree.tree_leaves(node.meta["val"]), pytree.tree_leaves(value)
    same = len(old) == len(new) and all(_same_but_strides(a, b) for a, b in zip(old, new, strict=True))
    if not same:
        raise RewriteError(f"{node.name} gives something else on other strides")
    return value


def _same_but_strides(old: Any, new: Any) -> bool:
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        return (shape_hint(old), old.dtype, old.device) == (shape_hint(new), new.dtype, new.device)
    return type(old) is type(new)
