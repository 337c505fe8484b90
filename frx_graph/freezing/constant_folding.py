"""Turn the weights of an inference graph into constants, and compute what depends on them alone at compile time.

While a graph is rewritten, its constants are placeholders like every other weight. `bind_constants` gives them their
values at the end. `WeightGuard` notices when a weight changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.support.torch_internals import (
    OpOverload,
    TracingContext,
    disable_autocast,
    disable_current_modes,
    get_schema,
    get_storage_id,
    pytree,
)

_NAMESPACES = frozenset({"aten", "prims", "mkldnn"})


@dataclass
class FrozenWeights:
    """The constants of a graph, with `values` by placeholder.

    The graph's caller does not know those `added`. `left` are nodes that constants determine, but that are not folded.
    """

    graph: fx.Graph
    values: dict[fx.Node, Tensor] = field(default_factory=dict)
    added: list[fx.Node] = field(default_factory=list)
    left: set[fx.Node] = field(default_factory=set)

    @property
    def names(self) -> frozenset[str]:
        """The names of all constants."""
        return frozenset(node.name for node in self.values)

    def add(self, name: str, value: Tensor) -> fx.Node:
        """Add a constant to the graph, with the strides of `value`."""
        last = self.graph.find_nodes(op="placeholder")[-1]
        like = last.meta["val"] if isinstance(last.meta.get("val"), Tensor) else next(iter(self.values)).meta["val"]
        with self.graph.inserting_after(last):
            node = self.graph.placeholder(name)
        node.meta["val"] = like.new_empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        self.values[node] = value
        self.added.append(node)
        return node


def freeze_weights(module: fx.GraphModule, is_constant: Callable[[Tensor], bool]) -> FrozenWeights:
    """Make the weights that are constant, and the values computed from them alone, constants of `module`, in place.

    A graph that writes into its weights has none. Outputs, and values that share memory with one, stay as they are.
    """
    graph = module.graph
    frozen = FrozenWeights(graph)
    weights = _list_weights()
    outputs = (node for node in pytree.tree_leaves(graph.output_node().args) if isinstance(node, fx.Node))
    returned = {memory for node in outputs for memory in _identify_storages(node)}
    with run_undisturbed():
        for node, weight in zip(graph.find_nodes(op="placeholder"), weights, strict=False):
            if _is_plain(weight) and is_constant(weight) and returned.isdisjoint(_identify_storages(node)):
                frozen.values[node] = weight.detach()

    def keeps(node: fx.Node, value: Tensor) -> bool:
        kept = returned.isdisjoint(_identify_storages(node)) and value.stride() == node.meta["val"].stride()
        if not kept:
            frozen.left.add(node)
        return kept

    known = _compute_constants(frozen, keeps)
    for node in list(graph.nodes):
        if node in known and node not in frozen.values and any(reader not in known for reader in node.users):
            constant = frozen.add(f"frozen_{node.name}", known[node])
            node.replace_all_uses_with(constant, delete_user_cb=lambda reader: reader not in known)
    if frozen.added:
        graph.eliminate_dead_code()
    return frozen


def bind_constants(module: fx.GraphModule, frozen: FrozenWeights) -> None:
    """Give the constants their values, and compute what depends on them alone, such as packed weights."""
    graph = module.graph
    known = _compute_constants(frozen, lambda node, _value: node not in frozen.left)
    names: dict[int, str] = {}
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in list(graph.nodes):
        if node not in known or all(reader in known for reader in node.users):
            continue
        value = known[node]
        name = names.setdefault(id(value), f"frozen_constant_{len(names)}")
        # Not a buffer: looking that up takes half a microsecond.
        module.__dict__[name] = value
        with graph.inserting_before(first):
            constant = graph.create_node("get_attr", name)
        constant.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(constant, delete_user_cb=lambda reader: reader not in known)
    for node in reversed(graph.nodes):
        if node in known and not node.users and (node.op == "call_function" or node in frozen.added):
            graph.erase_node(node)


def _list_weights() -> Sequence[Any]:
    """Return the parameters and buffers, the first inputs of the compiled graph; none if it writes into one."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None or context.params_flat_unwrap_subclasses is None:
        return ()
    weights = context.params_flat_unwrap_subclasses
    written = any(info.mutates_data or info.mutates_metadata for info in context.fw_metadata.input_info[: len(weights)])
    return () if written or context.fw_metadata.tokens else weights


def _is_plain(weight: object) -> bool:
    return (
        isinstance(weight, Tensor)
        and type(weight) in (Tensor, torch.nn.Parameter)
        and weight.layout is torch.strided
        and not weight.is_quantized
        and not weight.is_conj()
        and not weight.is_neg()
    )


def _compute_constants(frozen: FrozenWeights, keeps: Callable[[fx.Node, Tensor], bool]) -> dict[fx.Node, Tensor]:
    """Compute the values that depend on constants alone, except those that `keeps` rejects and their readers."""
    known = dict(frozen.values)
    with run_undisturbed():
        for node in frozen.graph.nodes:
            # In this order: comparing the sizes of other values would specialize them.
            if node in known or not all(n in known for n in node.all_input_nodes) or not _is_foldable(node):
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
            value = node.target(*args, **kwargs)
            if isinstance(value, Tensor) and keeps(node, value):
                known[node] = value
    return known


def _is_foldable(node: fx.Node) -> bool:
    target, value = node.target, node.meta.get("val")
    if node.op != "call_function" or not isinstance(target, OpOverload) or not isinstance(value, Tensor):
        return False
    operands = [n.meta.get("val") for n in node.all_input_nodes]
    elements = sum(n.numel() for n in operands if isinstance(n, Tensor))
    return (
        bool(operands)
        and target.namespace in _NAMESPACES
        and not get_schema(target).is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        # A larger result would take memory for good. A kernel of one pixel gets a row and a column of zeros.
        and value.numel() <= elements * (4 if target is torch.ops.aten.constant_pad_nd.default else 1)
    )


@contextlib.contextmanager
def run_undisturbed() -> Iterator[None]:
    """Run operators on real tensors: no modes, gradients or autocast in the block."""
    with disable_current_modes(), torch.no_grad(), disable_autocast():
        yield


def _identify_storages(node: fx.Node) -> list[int]:
    values = pytree.tree_leaves(node.meta.get("val"))
    return [get_storage_id(v.untyped_storage()) for v in values if isinstance(v, Tensor) and v.layout is torch.strided]
