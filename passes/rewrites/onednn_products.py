"""Compute matrix products of single precision, and convolutions as such products, by oneDNN.

Why: torch leaves matrix products to MKL, which is less than half as fast as oneDNN on some processors. Convolutions by
oneDNN reorder the weight in every call; for small images and large weights this takes almost half of their time.
How: the operator becomes a product on the same operands (`frx_graph.ops.onednn_linear`). A convolution that sees one
pixel at a time becomes a product of views (`conv1x1_as_matmul`), any other a product of the unfolded image
(`frx_graph.ops.im2col_convolution`). Each gradient of a convolution is replaced separately.
Assumes: a CPU, single precision, known sizes of images.
Safe: the same sums in another order, as between two versions of a library; the results have the same strides. It is
done only if it was measured to be faster on this machine.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, fx

from frx_graph.errors import RewriteError
from frx_graph.facts.graph_facts import OpFacts
from frx_graph.facts.operator_families import CONVOLUTIONS
from frx_graph.facts.operator_overload import find_overload
from frx_graph.facts.operator_signature import OperatorSignature, build_signature, make_tensor_spec
from frx_graph.passes.layouts.layout_choice import NOISE_SHARE
from frx_graph.passes.rewrites.conv1x1_as_matmul import view_as_columns, view_as_image, view_as_pixels
from frx_graph.passes.rewrites.meta_strides.fake_values import call_op
from frx_graph.passes.rewrites.meta_strides.stride_sensitivity import reads_ambiguous_image
from frx_graph.passes.rewrites.meta_strides.unreliable_values import has_one_order
from frx_graph.passes.rewrites.product_forms import Form, FormPart, list_forms
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "onednn_products"
_OPERATORS = CONVOLUTIONS | {"aten.mm", "aten.addmm"}


def list_calls(subject: RewriteSubject) -> Iterator[tuple[OperatorSignature, ...]]:
    """Return each operator as it is, and every call that may take its place."""
    for _, forms in _list_choices(subject):
        yield tuple(dict.fromkeys(call for form in forms for call in form.calls))


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose one candidate for all operators that are faster in another form; its choices name the forms."""
    chosen: dict[str, str] = {}
    saved = 0.0
    unknown: list[str] = []
    for op, (present, *others) in _list_choices(subject):
        if subject.everything:
            chosen[op.node] = others[0].name
            continue
        now = present.sum_seconds(subject.timed)
        timed = {form: seconds for form in others if (seconds := form.sum_seconds(subject.timed)) is not None}
        if now is None or not timed:
            unknown.append(op.node)
        elif timed[best := min(timed, key=timed.__getitem__)] < (1 - NOISE_SHARE) * now:
            chosen[op.node] = best.name
            saved += now - timed[best]
    if unknown:
        yield Refusal(NAME, "its time in either form could not be measured", tuple(unknown))
    if chosen:
        predicted = None if subject.everything else saved
        yield Candidate(NAME, subject.facts.graph_id, tuple(chosen), tuple(chosen.values()), predicted)


def apply(subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Put the products in each operator's place; no conversion is inserted."""
    names = dict(zip(candidate.nodes, candidate.choices, strict=True))
    choices = ((op.node, form) for op, forms in _list_choices(subject) for form in forms)
    chosen = {node: form for node, form in choices if form.name == names.get(node)}
    if chosen.keys() != names.keys():
        raise RewriteError("the candidate belongs to another graph")
    for node in list(module.graph.nodes):
        if node.name in chosen:
            with module.graph.inserting_before(node):
                _replace(node, chosen[node.name], generated=subject.generates_loops)
    return ()


REWRITE = Rewrite(NAME, propose, apply, list_calls)


def _list_choices(subject: RewriteSubject) -> Iterator[tuple[OpFacts, tuple[Form, ...]]]:
    """Return the operators that have more than one form."""
    facts = subject.facts
    for op in facts.ops:
        if op.operator not in _OPERATORS or _has_unknown_strides(op, subject):
            continue
        # The fastest form of a convolution changes with its sizes.
        if op.operator in CONVOLUTIONS and facts.has_dynamic_sizes(op):
            continue
        forms = list_forms(build_signature(op, facts), tuple(map(make_tensor_spec, facts.get_output_values(op))))
        if len(forms) > 1:
            yield op, forms


def _has_unknown_strides(op: OpFacts, subject: RewriteSubject) -> bool:
    """Return True for a convolution whose result's strides are uncertain: other forms would make the fake's."""
    if op.operator not in CONVOLUTIONS:
        return False
    values, doubtful = subject.facts.values, subject.doubtful
    if reads_ambiguous_image(op, subject.facts):
        image = values[op.inputs[0]]
        is_pixel = math.prod(image.shape[1:]) == 1
        return image.name in doubtful or (is_pixel and not doubtful.isdisjoint(op.outputs))
    return any(name in doubtful and not has_one_order(values[name].shape) for name in op.inputs)


def _replace(node: fx.Node, form: Form, *, generated: bool) -> None:
    made = {index: new for part in form.parts for index, new in _add_part(node, part, generated)}
    if isinstance(node.meta["val"], Tensor):
        node.replace_all_uses_with(made[0])
    for reader in list(node.users):
        index = reader.args[1]
        assert reader.target is operator.getitem and isinstance(index, int)
        reader.replace_all_uses_with(made[index])
        node.graph.erase_node(reader)
    node.graph.erase_node(node)


def _add_part(node: fx.Node, part: FormPart, generated: bool) -> Iterator[tuple[int, fx.Node]]:
    """Add what a part computes in front of the operator that it replaces; yield each result's index and node."""
    arguments = _make_arguments(node, part.call) if part.image is None else _make_pixel_operands(node, part, generated)
    made = _add_call(node, find_overload(part.call.target), arguments)
    if part.call.target == _BACKWARD:
        yield from ((index, _add_call(node, operator.getitem, (made, index))) for index in part.results)
        return
    (index,) = part.results
    yield index, made if part.image is None else view_as_image(made, part.image)


_BACKWARD = "aten.convolution_backward.default"


def _make_pixel_operands(node: fx.Node, part: FormPart, generated: bool) -> tuple[fx.Node | None, ...]:
    """Return the matrices to be multiplied, and the bias."""
    flatten: Callable[[Any], fx.Node] = functools.partial(view_as_pixels, generated=generated)
    if str(node.target) != _BACKWARD:
        x, w, bias = node.args[:3]
        assert bias is None or isinstance(bias, fx.Node)
        return flatten(x), view_as_columns(flatten(w)), bias
    g, x, w = node.args[:3]
    return (flatten(g), flatten(w), None) if part.results == (0,) else (view_as_columns(flatten(g)), flatten(x), None)


def _make_arguments(node: fx.Node, call: OperatorSignature) -> tuple[Any, ...]:
    """Take tensors from the operator that is replaced, numbers from the call."""
    match (call.target, *node.args):
        case "frx_graph.product.default", x, w:
            return x, w, None
        case "frx_graph.product.default", bias, x, w:
            return x, w, bias
        case "frx_graph.unfolded_convolution.default", x, w, bias, *_:
            return x, w, bias, *call.args[3:]
        case "frx_graph.unfolded_input_gradient.default", g, _, w, *_:
            return g, w, *call.args[2:]
        case "frx_graph.unfolded_weight_gradient.default", g, x, *_:
            return g, x, *call.args[2:]
        case "aten.sum.dim_IntList", g, *_:
            return g, *call.args[1:]
        case "aten.convolution_backward.default", *others, _:
            return *others, call.args[-1]
    raise RewriteError(f"{node.target} has no form that calls {call.target}")


def _add_call(at: fx.Node, target: Any, args: tuple[Any, ...]) -> fx.Node:
    made = call_op(at.graph, target, *args)
    made.meta["stack_trace"] = at.meta.get("stack_trace")
    return made
