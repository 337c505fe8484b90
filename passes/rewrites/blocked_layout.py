"""Convolutions and products on weights that were packed in oneDNN's blocked format when the graph was compiled.

Why: oneDNN computes on weights in blocks, and converts one that is not in every call; torch packs weights only where
Inductor freezes them.
How: a constant weight is packed for the sizes of its operator, which gives way to oneDNN's on the packed one; an
activation behind it that nothing else comes between is computed with it. Images stay in channels-last: blocked ones,
which oneDNN knows as well, were measured to be no faster.
Assumes: a frozen graph, run as it stands, on a CPU; fixed sizes.
Safe: the same sums in another order; results have the same strides. As in torch's own freezing an activation that is
computed with a convolution or product makes a number of what is none (NaN). It is done where it was measured to be
faster on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from frx_graph.errors import RewriteError
from frx_graph.evidence.operator_inputs import PACKED_PRODUCT, find_packer, packing_arguments
from frx_graph.facts.graph_facts import OpFacts, ValueFacts, ValueRef
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, strides_for_order
from frx_graph.facts.operator_overload import find_overload
from frx_graph.facts.operator_signature import OperatorSignature, signature_of, spec_of
from frx_graph.passes.layouts.layout_choice import NOISE_SHARE
from frx_graph.passes.rewrites.activations import Activation, activation_of
from frx_graph.passes.rewrites.conversion import exact_strides
from frx_graph.passes.rewrites.packed_forms import packed_form
from frx_graph.passes.rewrites.product_forms import Form, forms_of
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "blocked_layout"
_WEIGHTS = {"aten.convolution": 1, "aten.mm": 1, "aten.addmm": 2}
"""Which argument of an operator the weight is."""


@dataclass(frozen=True)
class _Choice:
    """An operator that may be packed: its forms, the packed one last; its result, behind what only makes sure of that
    one's strides; and the activation that reads the result, if there is one."""

    op: OpFacts
    forms: tuple[Form, ...]
    result: str
    behind: str | None

    @property
    def packed(self) -> Form:
        return self.forms[-1]


def asks(subject: RewriteSubject) -> Iterator[tuple[OperatorSignature, ...]]:
    """Each operator as it is, and every call that may take its place."""
    for choice in _choices(subject):
        if isinstance(choice, _Choice):
            yield tuple(dict.fromkeys(call for form in choice.forms for call in form.calls))


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """One candidate for all operators of the graph that are faster so. Its choices name the activation that each is
    computed with, by node name, or are empty."""
    chosen: dict[str, str] = {}
    saved = 0.0
    for choice in _choices(subject):
        if isinstance(choice, Refusal):
            yield choice
            continue
        if not subject.everything:
            seconds = [form.seconds(subject.timed) for form in choice.forms]
            now, packed = seconds[0], seconds[-1]
            if now is None or packed is None:
                yield Refusal(NAME, "its time in either form could not be measured", (choice.op.node,))
                continue
            best = min(known for known in seconds[:-1] if known is not None)
            # Where an activation is computed with it, that one's time is saved besides.
            if packed >= best * (1.0 if choice.behind else 1 - NOISE_SHARE):
                continue
            saved += now - packed
        chosen[choice.op.node] = choice.behind or ""
    if chosen:
        predicted = None if subject.everything else saved
        yield Candidate(NAME, subject.facts.graph_id, tuple(chosen), tuple(chosen.values()), predicted)


def apply(subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Put the packed operators in place; no conversion is inserted."""
    choices = {choice.op.node: choice for choice in _choices(subject) if isinstance(choice, _Choice)}
    if not choices.keys() >= set(candidate.nodes):
        raise RewriteError("the graph is not the one that the candidate is of")
    nodes = {node.name: node for node in module.graph.nodes}
    packed: dict[tuple[Any, ...], fx.Node] = {}
    for name, behind in zip(candidate.nodes, candidate.choices, strict=True):
        choice = choices[name]
        activation = activation_of(subject.facts.op_by_node[behind]) if behind else None
        given = nodes[behind or choice.result]
        _replace(nodes[name], given, choice.packed, activation or Activation(), packed)
    module.graph.eliminate_dead_code()
    return ()


REWRITE = Rewrite(NAME, propose, apply, asks)


def _choices(subject: RewriteSubject) -> Iterator[_Choice | Refusal]:
    if not subject.frozen or subject.generates_loops:
        return
    facts = subject.facts
    for op in facts.ops:
        position = _WEIGHTS.get(op.operator)
        if position is None:
            continue
        weight = op.args[position]
        if not isinstance(weight, ValueRef) or weight.name not in subject.constants:
            yield Refusal(NAME, "its weight is no constant", (op.node,))
        elif any(value.dynamic_dims for value in (*facts.input_values(op), *facts.output_values(op))):
            # A weight is packed for one size; for another one oneDNN would convert it again in each call.
            yield Refusal(NAME, "its sizes may change", (op.node,))
        else:
            call = signature_of(op, facts)
            result = _settled(op, subject)
            results = (spec_of(result),)
            packed = packed_form(call, results)
            if isinstance(packed, str):
                yield Refusal(NAME, packed, (op.node,))
            else:
                forms = (*forms_of(call, tuple(map(spec_of, facts.output_values(op)))), packed)
                yield _Choice(op, forms, result.name, _activation_of(result, subject))


def _settled(op: OpFacts, subject: RewriteSubject) -> ValueFacts:
    """The operator's result; where what reads it only makes sure of its strides, which packed operators are sure of,
    the same elements behind that."""
    facts = subject.facts
    (result,) = facts.output_values(op)
    settled = seen = result
    while len(readers := facts.users(seen.name)) == 1 and seen.name not in facts.outputs:
        (reader,) = readers
        first = seen is result
        if reader.operator != "aten.contiguous" if first else not reader.view:
            break
        (seen,) = facts.output_values(reader)
        if seen.dtype != result.dtype:
            break
        if first or (seen.shape == settled.shape and _same_places(seen, settled)):
            settled = seen
    return settled


def _same_places(one: ValueFacts, other: ValueFacts) -> bool:
    """True if each element of two values of one shape lies in the same place of their memory."""
    pairs = zip(one.shape, one.strides, other.strides, strict=True)
    return one.storage == other.storage and all(n == 1 or mine == theirs for n, mine, theirs in pairs)


def _activation_of(result: ValueFacts, subject: RewriteSubject) -> str | None:
    """The activation that alone reads the result, which nobody else sees."""
    facts = subject.facts
    readers = facts.users(result.name)
    if len(readers) != 1 or result.name in facts.outputs or activation_of(readers[0]) is None:
        return None
    (activated,) = facts.output_values(readers[0])
    same = (activated.shape, activated.strides, activated.dtype) == (result.shape, result.strides, result.dtype)
    return readers[0].node if same else None


def _replace(
    node: fx.Node, given: fx.Node, form: Form, activation: Activation, packed: dict[tuple[Any, ...], fx.Node]
) -> None:
    """Let what reads `given` read the packed form of `node`, `activation` included. `packed` are the weights packed so
    far, by what they are packed for."""
    graph = node.graph
    (call,) = form.calls
    value = given.meta["val"]
    product = call.target == PACKED_PRODUCT
    if product:
        bias, x, weight = node.args if len(node.args) == 3 else (None, *node.args)
    else:
        x, weight, bias = node.args[:3]
    assert isinstance(weight, fx.Node)
    numbers = packing_arguments(call.target, call.args)
    settings = () if product else tuple(map(_listed, call.args[3:-3]))
    target: Any = find_overload(call.target)
    with graph.inserting_before(node):
        key = (weight, call.target, str(numbers))
        if key not in packed:
            packed[key] = _packed(weight, call.target, numbers)
        told = (activation.name, list(activation.numbers), activation.variant)
        result = graph.call_function(target, (x, packed[key], bias, *settings, *told))
        order = range(2) if product else CHANNELS_LAST_ORDER[value.dim()]
        made = value.new_empty_strided(value.shape, strides_for_order(value.shape, order))
        result.meta.update({**node.meta, "val": made})
        if made.stride() != value.stride():
            exact = exact_strides(graph, result, value)
            if exact is None:
                raise RewriteError(f"{node.name} has strides that cannot be given back")
            result = exact
    given.replace_all_uses_with(result)


def _packed(weight: fx.Node, target: str, numbers: Sequence[Any]) -> fx.Node:
    """What packs `weight` for oneDNN's operator `target`."""
    graph = weight.graph
    if target == PACKED_PRODUCT:
        turned = graph.call_function(torch.ops.aten.permute.default, (weight, [1, 0]))
        turned.meta["val"] = weight.meta["val"].t()
        weight = turned
    packed = graph.call_function(find_packer(target), (weight, *map(_listed, numbers)))
    # What is packed has no strides; who reads it looks at its shape.
    packed.meta["val"] = weight.meta["val"]
    return packed


def _listed(argument: Any) -> Any:
    return list(argument) if isinstance(argument, tuple) else argument
