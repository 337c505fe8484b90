"""Recognise written-out attention that is exactly `scaled_dot_product_attention`, and refuse all other.

`attentions` recognises the pattern for advice. Here every operator from the first product to the second is checked
again, and anything unknown is refused. The program must compute softmax(scale · Q Kᵀ + mask) V in one dtype. Nothing
else may read the scores and weights, and nothing may write to the operands meanwhile.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.passes.attention_pattern import FALLBACK_SOFTMAX, Attention, find_attentions
from frx_graph.passes.attention_walks import BIASES, MASKS, SCALES, find_constant, trace_sources
from frx_graph.passes.causal_mask import is_causal_bias
from frx_graph.passes.copies.view_chain import is_view
from frx_graph.records import Refusal

_PRODUCTS = frozenset({torch.matmul, operator.matmul, torch.bmm, "matmul", "bmm", "__matmul__"})
"""Products in Dynamo's graphs; `einsum` and `baddbmm` are left alone."""
_RESHAPES = frozenset({"aten.view", "aten._unsafe_view", "aten.unsqueeze", "aten.squeeze", "aten.expand"})
_SIZE_ONLY = frozenset(
    f"aten.{name}" for name in ("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full")
)
"""Operators that take a tensor for its size and dtype."""
_DTYPES = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
_HIDES = -1e9
"""A causal mask's largest fill, or the dtype's least number: no score that a network makes comes near."""
_ABSORBS = -1e30
"""Adding a score to this gives this, in float32 and what is wider or has its range, so that adding is filling in."""


@dataclass(frozen=True)
class MaskUse:
    """A bias that is added to the scores, or, with a `fill`, a condition that hides where it is False, if `keeps`."""

    node: fx.Node
    fill: float | None = None
    keeps: bool = False


@dataclass(frozen=True)
class WrittenAttention:
    """One attention in a Dynamo graph. `path` are the nodes from the first product to the operand of `second`, with no
    other readers; `batch` are the dimensions in front of queries and keys to which the mask is applied. `returned` is
    true if it trains and the caller gets its result, or a view of that."""

    attention: Attention
    query: fx.Node
    key_transposed: fx.Node
    value: fx.Node
    path: tuple[fx.Node, ...]
    second: fx.Node
    scale: float
    causal: bool
    mask: MaskUse | None
    batch: tuple[int, ...]
    returned: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes' names."""
        return tuple(node.name for node in (*self.path, self.second))


class _InexactAttentionError(Exception):
    """A reason for leaving a written attention alone."""


def find_written_attention(
    dynamo: fx.Graph, facts: GraphFacts, origins: Mapping[str, str]
) -> Iterator[WrittenAttention | Refusal]:
    """Yield every attention that can be one call, and a refusal for every other. `facts` describe `dynamo`'s eager ATen
    graph; `origins` maps its node names to Dynamo's."""
    nodes = {node.name: node for node in dynamo.nodes}
    for attention in find_attentions(facts):
        if attention.softmax.operator == FALLBACK_SOFTMAX:
            continue
        try:
            yield _check_attention(attention, facts, lambda op: nodes[origins[op.node]])
        except (_InexactAttentionError, KeyError) as error:
            reason = str(error) if isinstance(error, _InexactAttentionError) else "it is not in Dynamo's graph itself"
            site = attention.softmax.site
            yield Refusal(f"attention at {site}", reason, tuple(op.node for op in attention.between), site)


def _check_attention(attention: Attention, facts: GraphFacts, origin: Callable[[OpFacts], fx.Node]) -> WrittenAttention:
    _require(attention.dropout == 0.0, "it drops weights out, for which a fused kernel draws other random numbers")
    _require(not attention.unsupported, f"the scores go through {', '.join(attention.unsupported)}")
    steps = _list_steps(attention, facts)
    _check_values(attention, steps, facts)
    first, second = origin(attention.first), origin(attention.second)
    query, key_transposed = _unpack_operands(first)
    weights, value = _unpack_operands(second)
    path = _trace_path(first, second, {origin(op) for op in steps})
    _require(weights in path and value not in path, "the weights are not the second product's first operand")
    _require(query not in path and key_transposed not in path, "a factor of the scores is made from them")
    given = {node.meta["example_value"].dtype for node in (query, key_transposed, value, second)}
    _require(given == {attention.query.dtype}, "autocast changes its operands' dtype")
    _require(
        read_shape(query)[:-2] == read_shape(key_transposed)[:-2], "queries are multiplied with keys of another batch"
    )
    _require(read_shape(weights)[:-2] == read_shape(value)[:-2], "weights are multiplied with values of another batch")
    _check_between(attention, facts, first, second, path)
    scale = 1.0 if attention.scale is None or attention.scale_on_query else attention.scale
    _require(0.0 < scale < math.inf, f"the scores are multiplied with {scale}")
    trains = any(node.meta["example_value"].requires_grad for node in (query, key_transposed, value))
    if trains:
        _check_afterwards(attention, facts)
    causal, mask, batch = _classify_mask(attention, steps, facts, origin, path, trains)
    batch = read_shape(query)[:-2] if batch is None else batch
    _require(mask is None or len(batch) <= 2, "a mask is applied to scores of more than four dimensions")
    returned = trains and any(facts.values[name].user_visible for name in attention.second.outputs)
    return WrittenAttention(attention, query, key_transposed, value, path, second, scale, causal, mask, batch, returned)


def _list_steps(attention: Attention, facts: GraphFacts) -> tuple[OpFacts, ...]:
    """Return the operators from the first product to the operand of the second one, views included, in order."""
    made = _find_dependents(attention.first, facts)
    steps: list[OpFacts] = []
    value = attention.second.inputs[-2]
    _require(attention.second.inputs[-1] not in made, "the values are made from the weights")
    while True:
        op = facts.get_producer(value)
        _require(op is not None and len(op.outputs) == 1, "what the second product reads is not made from the first")
        assert op is not None
        steps.insert(0, op)
        if op.node == attention.first.node:
            break
        carried = [name for name in dict.fromkeys(op.inputs) if name in made]
        _require(len(carried) == 1, f"{op.operator} reads the scores twice")
        value = carried[0]
    named = {op.node for op in steps if not is_view(op)}
    _require(named == {op.node for op in attention.between}, "an unknown operator is between product and softmax")
    return tuple(steps)


def _find_dependents(op: OpFacts, facts: GraphFacts) -> set[str]:
    """Return all values that depend on the results of `op`."""
    made = set(op.outputs)
    for later in facts.ops:
        if later.operator not in _SIZE_ONLY and not made.isdisjoint(later.inputs):
            made.update(later.outputs)
    return made


def _check_values(attention: Attention, steps: tuple[OpFacts, ...], facts: GraphFacts) -> None:
    query, key, value = attention.query, attention.key, attention.value
    scores = facts.values[attention.first.outputs[0]]
    made = [facts.values[op.outputs[0]] for op in steps]
    every = (query, key, value, *made)
    _require(attention.first.operator == "aten.bmm", f"its first product is {attention.first.operator}")
    _require(attention.second.operator == "aten.bmm", f"its second product is {attention.second.operator}")
    _require(query.dtype in _DTYPES, f"it computes in {query.dtype}")
    _require({v.dtype for v in every} == {query.dtype}, "it changes dtype on the way")
    _require(query.device.type in ("cpu", "cuda"), f"it runs on {query.device.type}")
    _require(not any(v.dynamic_dims for v in every), "its sizes are symbolic")
    _require(all(v.numel for v in every), "it has no elements")
    for op, result in zip(steps[1:], made[1:], strict=True):
        _require(not op.symbolic, f"{op.operator} takes a number that may change")
        moved = result.numel != scores.numel or result.shape[-2:] != scores.shape[-2:]
        _require(not moved, f"{op.operator} moves the scores to other places")
        known = _RESHAPES if is_view(op) else LAYOUT_COPIES | SCALES | BIASES | MASKS | {attention.softmax.operator}
        _require(op.operator in known, f"the scores go through {op.operator}")
        if op.operator in SCALES | BIASES:
            _require(not op.kwargs, f"{op.operator} takes {', '.join(op.kwargs)}")
        if op.operator in BIASES:
            tensors = sum(isinstance(argument, ValueRef) for argument in op.args)
            _require(tensors == 2, "a number is added to the scores")


def _unpack_operands(product: fx.Node) -> tuple[fx.Node, fx.Node]:
    _require(product.target in _PRODUCTS and not product.kwargs, f"its product is part of {product.target}")
    _require(len(product.args) == 2, f"{product.name} takes more than its factors")
    left, right = product.args
    assert isinstance(left, fx.Node) and isinstance(right, fx.Node), "products are of tensors"
    return left, right


def _trace_path(first: fx.Node, second: fx.Node, steps: set[fx.Node]) -> tuple[fx.Node, ...]:
    """Return the Dynamo nodes that `steps` came from, and those between them without an operator."""
    node = first
    path = {first: None}
    while (node := node.next) is not second:
        _require(node.op != "output", "the second product comes before the first")
        if not path.keys().isdisjoint(node.all_input_nodes):
            path[node] = None
    members = {*path, second}
    _require(steps <= members, "an operator of the scores is elsewhere in Dynamo's graph")
    used = [user.name for member in path for user in member.users if user not in members]
    _require(not used, f"scores or weights are also used by {', '.join(dict.fromkeys(used))}")
    # A node without readers that is not an operator of the scores has an effect, which would be lost.
    effects = [member.name for member in path if not member.users and member not in steps]
    _require(not effects, f"scores or weights are also given to {', '.join(effects)}")
    return tuple(path)


def _check_between(
    attention: Attention, facts: GraphFacts, first: fx.Node, second: fx.Node, path: tuple[fx.Node, ...]
) -> None:
    """Check that the fused call, in the place of the second product, reads what the first one read before."""
    node, members = first, set(path)
    while (node := node.next) is not second:
        plain = node in members or node.op in ("placeholder", "get_attr") or "example_value" in node.meta
        _require(plain, f"{node.name} is between its products, and changes how torch computes")
    operands = {value.storage for value in _list_read_values(attention, facts)}
    own = {facts.values[name].storage for op in attention.between for name in op.outputs}
    _require(operands.isdisjoint(own), "its operands share memory with the scores")
    places = [op.node for op in facts.ops]
    begin, end = places.index(attention.first.node), places.index(attention.second.node)
    for op in facts.ops[begin:end]:
        _require(not op.opaque, f"{op.operator} is between its products")
        written = {facts.values[name].storage for name in op.mutates}
        _require(operands.isdisjoint(written), f"{op.operator} writes into an operand between its products")


def _check_afterwards(attention: Attention, facts: GraphFacts) -> None:
    """Check that nothing writes later into operands and result, which fused kernels save for the backward."""
    saved = (*_list_read_values(attention, facts), *facts.get_output_values(attention.second))
    kept = {value.storage for value in saved}
    places = [op.node for op in facts.ops]
    for op in facts.ops[places.index(attention.second.node) + 1 :]:
        written = {facts.values[name].storage for name in op.mutates}
        _require(kept.isdisjoint(written), f"{op.operator} writes later into what its backward reads")


def _list_read_values(attention: Attention, facts: GraphFacts) -> list[ValueFacts]:
    """Return what the operators between the products read, and the sources of the copies: a fused call reads these."""
    names = {name for op in (*attention.between, attention.second) for name in op.inputs}
    made = {name for op in attention.between for name in op.outputs}
    read = [facts.values[source] for name in names - made for source in trace_sources(facts, name)]
    own = {facts.values[name].storage for name in made}
    return [value for value in read if value.storage not in own]


def _classify_mask(
    attention: Attention,
    steps: tuple[OpFacts, ...],
    facts: GraphFacts,
    origin: Callable[[OpFacts], fx.Node],
    path: tuple[fx.Node, ...],
    trains: bool,
) -> tuple[bool, MaskUse | None, tuple[int, ...] | None]:
    """Return True for a causal mask; else the summand of the scores, and the batch that it is added in."""
    applied = [op for op in steps if op.operator in BIASES | MASKS]
    if not applied:
        return False, None, None
    _require(len(applied) == 1, "more than one mask or bias is applied")
    (op,) = applied
    result = facts.values[op.outputs[0]]
    least = max(_HIDES, torch.finfo(result.dtype).min)
    scaled_later = any(later.operator in SCALES for later in steps[steps.index(op) :])
    if op.operator in BIASES:
        (bias,) = attention.biases
        if is_causal_bias(facts, bias, least):
            return True, None, None
        others = [node for node in origin(op).all_input_nodes if node not in path]
        _require(len(others) == 1, "its bias is not in Dynamo's graph itself")
        value: Tensor = others[0].meta["example_value"]
        _require(value.dtype is result.dtype, f"its bias is of {value.dtype}")
        _require(not value.requires_grad, "its bias needs a gradient, which fused kernels do not give")
        _require(not facts.values[bias].dynamic_dims, "its sizes are symbolic")
        return False, MaskUse(others[0]), result.shape[:-2]
    _require(len(attention.masks) == 1, "its mask is not a tensor")
    keeps = attention.masks[0].keeps
    fill = find_constant(facts, op.args[1 if op.operator == "aten.where" and not keeps else 2])
    _require(fill is not None and not math.isnan(fill), "what its mask fills in is not known")
    assert fill is not None
    _require(not scaled_later or fill == -math.inf, "scores are scaled after they are masked")
    if attention.causal and fill <= least:
        return True, None, None
    _require(not trains, "its mask may hide all keys of a query, which then has other gradients")
    _require(fill <= _ABSORBS, f"its mask may hide all keys of a query by {fill}, which a fused kernel lets through")
    conditions = [n for n in origin(op).all_input_nodes if n.meta["example_value"].dtype is torch.bool]
    _require(len(conditions) == 1, "its mask is not in Dynamo's graph itself")
    return False, MaskUse(conditions[0], fill, keeps), result.shape[:-2]


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _InexactAttentionError(otherwise)


def read_shape(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a Dynamo node's example."""
    return tuple(node.meta["example_value"].shape)
