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

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.errors import RewriteError
from frx_graph.evidence.operator_inputs import PACKED_CONVOLUTION
from frx_graph.facts.graph_facts import OpFacts, ValueRef
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, strides_for_order
from frx_graph.facts.operator_overload import argument_of, find_overload
from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec, signature_of, spec_of
from frx_graph.passes.layouts.layout_choice import NOISE_SHARE
from frx_graph.passes.rewrites.conversion import exact_strides
from frx_graph.passes.rewrites.packed_forms import packed_form
from frx_graph.passes.rewrites.product_forms import Form, forms_of
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "blocked_layout"
_WEIGHTS = {"aten.convolution": 1, "aten.mm": 1, "aten.addmm": 2}
"""Which argument of an operator the weight is."""


@dataclass(frozen=True, slots=True)
class Activation:
    """What oneDNN computes behind a convolution or product: its name there, numbers, and variant."""

    name: str = "none"
    numbers: tuple[float, ...] = ()
    variant: str = ""


@dataclass(frozen=True)
class _Choice:
    """An operator that may be packed: its forms, the packed one last, and the activation behind it, if there is one."""

    op: OpFacts
    forms: tuple[Form, ...]
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
    forms = {choice.op.node: choice.packed for choice in _choices(subject) if isinstance(choice, _Choice)}
    if not forms.keys() >= set(candidate.nodes):
        raise RewriteError("the graph is not the one that the candidate is of")
    nodes = {node.name: node for node in module.graph.nodes}
    packed: dict[tuple[Any, ...], fx.Node] = {}
    for name, behind in zip(candidate.nodes, candidate.choices, strict=True):
        activation = activation_of(subject.facts.op_by_node[behind]) if behind else None
        _replace(nodes[name], nodes.get(behind), forms[name], activation or Activation(), packed)
    module.graph.eliminate_dead_code()
    return ()


REWRITE = Rewrite(NAME, propose, apply, asks)


def activation_of(op: OpFacts) -> Activation | None:
    """The operator as oneDNN knows it, if it does."""

    def number(name: str) -> float:
        value = argument_of(op, name)
        return float(value) if isinstance(value, (int, float)) else math.nan

    match op.operator:
        case "aten.relu" | "aten.sigmoid" | "aten.tanh" | "aten.hardswish" | "aten.hardsigmoid":
            found = Activation(op.operator.removeprefix("aten."))
        case "aten.silu":
            found = Activation("swish")
        case "aten.gelu":
            found = Activation("gelu", (), str(argument_of(op, "approximate")))
        case "aten.hardtanh":
            found = Activation("hardtanh", (number("min_val"), number("max_val")))
        case "aten.leaky_relu":
            found = Activation("leaky_relu", (number("negative_slope"),))
        case _:
            return None
    return None if any(map(math.isnan, found.numbers)) else found


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
            results = tuple(map(spec_of, facts.output_values(op)))
            packed = packed_form(call, results)
            if isinstance(packed, str):
                yield Refusal(NAME, packed, (op.node,))
            else:
                yield _Choice(op, (*forms_of(call, results), packed), _activation_behind(op, subject))


def _activation_behind(op: OpFacts, subject: RewriteSubject) -> str | None:
    """The activation that alone reads the operator's result, which nobody else sees."""
    facts = subject.facts
    (result,) = facts.output_values(op)
    readers = facts.users(result.name)
    if len(readers) != 1 or result.name in facts.outputs or activation_of(readers[0]) is None:
        return None
    (activated,) = facts.output_values(readers[0])
    same = (activated.shape, activated.strides, activated.dtype) == (result.shape, result.strides, result.dtype)
    return readers[0].node if same else None


def _replace(
    node: fx.Node, behind: fx.Node | None, form: Form, activation: Activation, packed: dict[tuple[Any, ...], fx.Node]
) -> None:
    graph = node.graph
    (call,) = form.calls
    value = (behind or node).meta["val"]
    convolution = call.target == PACKED_CONVOLUTION
    with graph.inserting_before(node):
        if convolution:
            x, weight, bias = node.args[:3]
            numbers = (*call.args[3:7], list(_shape(call.args[0])))
        else:
            bias, x, weight = node.args if len(node.args) == 3 else (None, *node.args)
            numbers = (_shape(call.args[0])[0],)
        assert isinstance(weight, fx.Node)
        key = (weight, str(numbers))
        if key not in packed:
            packed[key] = _packed(graph, weight, numbers, convolution)
        settings = call.args[3:7] if convolution else ()
        told = (activation.name, list(activation.numbers), activation.variant)
        target: Any = find_overload(call.target)
        made = graph.call_function(target, (x, packed[key], bias, *map(_listed, settings), *told))
    order = CHANNELS_LAST_ORDER[value.dim()] if convolution else range(2)
    made.meta.update({**node.meta, "val": value.new_empty_strided(value.shape, strides_for_order(value.shape, order))})
    result = made
    if made.meta["val"].stride() != value.stride():
        with graph.inserting_before(node):
            exact = exact_strides(graph, made, value)
        if exact is None:
            raise RewriteError(f"{node.name} has strides that cannot be given back")
        result = exact
    (behind or node).replace_all_uses_with(result)


def _packed(graph: fx.Graph, weight: fx.Node, numbers: Sequence[Any], convolution: bool) -> fx.Node:
    if convolution:
        made = graph.call_function(
            torch.ops.mkldnn._reorder_convolution_weight.default, (weight, *map(_listed, numbers))
        )
    else:
        turned = graph.call_function(torch.ops.aten.permute.default, (weight, [1, 0]))
        turned.meta["val"] = weight.meta["val"].t()
        weight = turned
        made = graph.call_function(torch.ops.mkldnn._reorder_linear_weight.default, (weight, *numbers))
    # What is packed has no strides; readers are made for its shape.
    made.meta["val"] = weight.meta["val"]
    return made


def _shape(argument: object) -> tuple[int, ...]:
    assert isinstance(argument, TensorSpec)
    return argument.shape


def _listed(argument: Any) -> Any:
    return list(argument) if isinstance(argument, tuple) else argument
