"""Run convolutions and products on weights packed in oneDNN's blocked format when the graph is compiled.

Why: oneDNN computes on weights in blocks, and converts any other weight in every call; torch packs weights only if
Inductor freezes them.
How: a constant weight is packed for the operator's sizes, and oneDNN's operator replaces the original one. An
activation directly after it is fused. Images stay in channels-last: blocked images, which oneDNN also knows, were
measured to be no faster.
Assumes: a frozen graph, run as it is, on a CPU; fixed sizes.
Safe: the same sums in another order; results have the same strides. As in torch's own freezing, a fused activation
turns NaN into a number. It is done only if it was measured to be faster on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from frx_graph.errors import RewriteError
from frx_graph.facts.graph_facts import OpFacts, ValueFacts, ValueRef
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, is_channels_last, make_ordered_strides
from frx_graph.facts.operator_overload import find_overload
from frx_graph.facts.operator_signature import OperatorSignature, build_signature, make_tensor_spec
from frx_graph.measure.operators.operator_inputs import (
    PACKED_CONVOLUTION,
    PACKED_PRODUCT,
    find_packer,
    get_packing_arguments,
)
from frx_graph.passes.layouts.layout_choice import NOISE_SHARE
from frx_graph.passes.rewrites.layout.conversion import restore_exact_strides
from frx_graph.passes.rewrites.meta_strides.requires_contiguous_input import requires_contiguous_input
from frx_graph.passes.rewrites.meta_strides.stride_sensitivity import reads_ambiguous_image
from frx_graph.passes.rewrites.meta_strides.unreliable_values import has_one_order
from frx_graph.passes.rewrites.packed_forms import (
    Activation,
    find_activation_behind,
    make_packed_form,
    match_activation,
)
from frx_graph.passes.rewrites.product_forms import Form, list_forms
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject, have_same_layout
from frx_graph.records import Candidate, Refusal

NAME = "blocked_layout"
_WEIGHTS = {"aten.convolution": 1, "aten.mm": 1, "aten.addmm": 2}
"""Position of an operator's weight."""


@dataclass(frozen=True)
class _FusedSum:
    """A sum of the operator's result `of`, by name, and another value."""

    node: str
    of: str


@dataclass(frozen=True)
class _PackingChoice:
    """An operator that may be packed: its forms, the packed one last, and what is fused with it. `added` is the sum
    that alone reads its result, `behind` the activation that alone reads the result or the sum. `result` is the value
    that the packed operator replaces."""

    op: OpFacts
    forms: tuple[Form, ...]
    result: str
    added: _FusedSum | None
    behind: str | None

    @property
    def packed(self) -> Form:
        return self.forms[-1]


def list_calls(subject: RewriteSubject) -> Iterator[tuple[OperatorSignature, ...]]:
    """Return each operator as it is, and every call that may take its place."""
    for choice in _list_choices(subject):
        if isinstance(choice, _PackingChoice):
            yield tuple(dict.fromkeys(call for form in choice.forms for call in form.calls))


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose one candidate for all operators that are faster packed; its choices name the fused sum and activation."""
    chosen: dict[str, str] = {}
    saved = 0.0
    for choice in _list_choices(subject):
        if isinstance(choice, Refusal):
            yield choice
            continue
        if not subject.everything:
            seconds = [form.sum_seconds(subject.timed) for form in choice.forms]
            now, packed = seconds[0], seconds[-1]
            if now is None or packed is None:
                yield Refusal(NAME, "its time in either form could not be measured", (choice.op.node,))
                continue
            best = min(known for known in seconds[:-1] if known is not None)
            # What is fused is saved besides.
            more = choice.behind is not None or choice.added is not None
            if packed >= best * (1.0 if more else 1 - NOISE_SHARE):
                continue
            saved += now - packed
        fused = (choice.added.node if choice.added else None, choice.behind)
        chosen[choice.op.node] = ",".join(filter(None, fused))
    if chosen:
        predicted = None if subject.everything else saved
        yield Candidate(NAME, subject.facts.graph_id, tuple(chosen), tuple(chosen.values()), predicted)


def apply(subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Put the packed operators in place; no conversion is inserted."""
    choices = {choice.op.node: choice for choice in _list_choices(subject) if isinstance(choice, _PackingChoice)}
    if not choices.keys() >= set(candidate.nodes):
        raise RewriteError("the candidate belongs to another graph")
    nodes = {node.name: node for node in module.graph.nodes}
    packed: dict[object, fx.Node] = {}
    for name in candidate.nodes:
        _replace(nodes, choices[name], subject, packed)
    module.graph.eliminate_dead_code()
    return ()


REWRITE = Rewrite(NAME, propose, apply, list_calls)


def _list_choices(subject: RewriteSubject) -> Iterator[_PackingChoice | Refusal]:
    if not subject.frozen or subject.generates_loops:
        return
    sums: set[str] = set()
    facts = subject.facts
    seen = any(
        name in subject.doubtful and not has_one_order(facts.values[name].shape) for name in subject.observable_outputs
    )
    for op in facts.ops:
        position = _WEIGHTS.get(op.operator)
        if position is None:
            continue
        weight = op.args[position]
        if not isinstance(weight, ValueRef) or weight.name not in subject.constants:
            yield Refusal(NAME, "its weight is not a constant", (op.node,))
        elif facts.has_dynamic_sizes(op):
            # A weight is packed for one size; for another one oneDNN would convert it again in each call.
            yield Refusal(NAME, "its sizes may change", (op.node,))
        elif reads_ambiguous_image(op, facts):
            yield Refusal(NAME, "its image of one channel is in both layouts at once", (op.node,))
        elif seen and op.outputs[0] in subject.doubtful:
            yield Refusal(NAME, "its strides may differ from its fake's, and so may those of outputs", (op.node,))
        elif requires_contiguous_input(op, facts):
            yield Refusal(NAME, "oneDNN computes wrong values with weights packed for these sizes", (op.node,))
        else:
            call = build_signature(op, facts)
            result = _find_settled_result(op, subject)
            results = (make_tensor_spec(result),)
            packed = make_packed_form(call, results)
            if isinstance(packed, str):
                yield Refusal(NAME, packed, (op.node,))
            else:
                forms = (*list_forms(call, tuple(map(make_tensor_spec, facts.get_output_values(op)))), packed)
                added = _find_sum(result, subject) if _can_add(packed.calls[0]) else None
                if added is not None and added.node in sums:
                    # The sum is fused with its other operand.
                    added = None
                if added is not None:
                    sums.add(added.node)
                    result = facts.values[added.node]
                behind = find_activation_behind(result, facts)
                if behind is not None and added is not None and behind.operator != "aten.relu":
                    # Behind a sum, oneDNN's operator has only `relu`.
                    behind = None
                yield _PackingChoice(op, forms, result.name, added, behind.node if behind else None)


def _can_add(packed: OperatorSignature) -> bool:
    """Return True unless groups make torch add behind the convolution, by an operator that bfloat16 lacks (2.15)."""
    groups = 6
    return packed.target == PACKED_CONVOLUTION and packed.args[groups] == 1


def _find_sum(result: ValueFacts, subject: RewriteSubject) -> _FusedSum | None:
    """Return the sum with a value of the same layout that alone reads the result; None if there is none."""
    facts = subject.facts
    readers = facts.get_users(result.name)
    if len(readers) != 1 or result.name in facts.outputs or readers[0].target != "aten.add.Tensor":
        return None
    (add,) = readers
    (total,) = facts.get_output_values(add)
    others = [argument for argument in add.args[:2] if argument != ValueRef(result.name)]
    if len(others) != 1 or not isinstance(others[0], ValueRef) or len(add.args) != 2 or add.kwargs:
        return None
    alike = have_same_layout(result, facts.values[others[0].name], total)
    return _FusedSum(add.node, result.name) if alike and total.name == add.node else None


def _find_settled_result(op: OpFacts, subject: RewriteSubject) -> ValueFacts:
    """Return the result after readers that only ensure strides or copy it to channels-last, as packed operators do."""
    facts = subject.facts
    (result,) = facts.get_output_values(op)
    settled = seen = result
    while len(readers := facts.get_users(seen.name)) == 1 and seen.name not in facts.outputs:
        (reader,) = readers
        copies = reader.operator in ("aten.contiguous", "aten.clone") and seen is settled
        if (not copies and (not reader.view or settled is result)) or len(reader.outputs) != 1:
            break
        (seen,) = facts.get_output_values(reader)
        if seen.dtype != result.dtype or (copies and not is_channels_last(seen.shape, seen.strides)):
            break
        if copies or (seen.shape == settled.shape and _have_same_places(seen, settled)):
            settled = seen
    return settled


def _have_same_places(one: ValueFacts, other: ValueFacts) -> bool:
    """Return True if each element of two values of one shape has the same place in memory."""
    pairs = zip(one.shape, one.strides, other.strides, strict=True)
    return one.storage == other.storage and all(n == 1 or mine == theirs for n, mine, theirs in pairs)


def _replace(
    nodes: Mapping[str, fx.Node], choice: _PackingChoice, subject: RewriteSubject, packed: dict[object, fx.Node]
) -> None:
    """Put the packed operator in the place of all that it computes. `packed` holds the weights packed so far."""
    node, given = nodes[choice.op.node], nodes[choice.behind or choice.result]
    (call,) = choice.packed.calls
    value = given.meta["val"]
    product = call.target == PACKED_PRODUCT
    if product:
        bias, x, weight = node.args if len(node.args) == 3 else (None, *node.args)
    else:
        x, weight, bias = node.args[:3]
    assert isinstance(weight, fx.Node)
    numbers = get_packing_arguments(call.target, call.args)
    settings = () if product else tuple(map(_make_list, call.args[3:-3]))
    activation = match_activation(subject.facts.op_by_node[choice.behind]) if choice.behind else None
    key = (weight, call.target, str(numbers))
    if key not in packed:
        with node.graph.inserting_before(node):
            packed[key] = _pack_weight(weight, call.target, numbers)
    # The other summand may be computed after the operator.
    with node.graph.inserting_before(nodes[choice.added.node] if choice.added else node):
        if choice.added is not None:
            own = nodes[choice.added.of]
            (other,) = (source for source in nodes[choice.added.node].all_input_nodes if source is not own)
            told: tuple[Any, ...] = ("add", None, activation and activation.name, [], None)
            target = torch.ops.mkldnn._convolution_pointwise.binary
            result = node.graph.call_function(target, (x, other, packed[key], bias, *settings, *told))
        else:
            activation = activation or Activation()
            told = (activation.name, list(activation.numbers), activation.variant)
            overload: Any = find_overload(call.target)
            result = node.graph.call_function(overload, (x, packed[key], bias, *settings, *told))
        order = range(2) if product else CHANNELS_LAST_ORDER[value.dim()]
        made = value.new_empty_strided(value.shape, make_ordered_strides(value.shape, order))
        result.meta.update({**node.meta, "val": made})
        if made.stride() != value.stride():
            exact = restore_exact_strides(node.graph, result, value)
            # Unknown for sizes that may change; for those no weights are packed.
            assert exact is not None
            result = exact
    given.replace_all_uses_with(result)


def _pack_weight(weight: fx.Node, target: str, numbers: Sequence[Any]) -> fx.Node:
    """Add the call that packs `weight` for oneDNN's operator `target`."""
    graph = weight.graph
    if target == PACKED_PRODUCT:
        turned = graph.call_function(torch.ops.aten.permute.default, (weight, [1, 0]))
        turned.meta["val"] = weight.meta["val"].t()
        weight = turned
    packed = graph.call_function(find_packer(target), (weight, *map(_make_list, numbers)))
    # A packed weight has no strides; its readers look at its shape.
    packed.meta["val"] = weight.meta["val"]
    return packed


def _make_list(argument: Any) -> Any:
    return list(argument) if isinstance(argument, tuple) else argument
