"""Where fake tensors cannot be trusted with the strides of a result.

A rewrite predicts strides by running operators on fakes. Where an operator makes other strides than its fake, what was
planned behind it would read something else: views fail, and callers see strides that eager does not have. Found by
running torch's operator database on channels-last and permuted operands, real and fake side by side (torch 2.15, CPU).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from frx_graph.errors import RewriteError
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import Layout, layout_of, strides_for_order
from frx_graph.facts.operator_families import CONVOLUTIONS, FOLDED_PRODUCTS, LAYOUT_COPIES
from frx_graph.facts.size_hint import shape_hint, stride_hint
from frx_graph.passes.rewrites.conversion import MEMORY_FORMATS
from frx_graph.rules.dimension_map import plain_order, view_strides

_OTHER_THAN_FAKE = frozenset(
    {
        "aten._log_softmax_backward_data",
        "aten.channel_shuffle",
        "aten.glu_backward",
        "aten.native_dropout_backward",
        "aten.reflection_pad2d_backward",
        "aten.reflection_pad3d",
        "aten.reflection_pad3d_backward",
        "aten.replication_pad2d_backward",
        "aten.replication_pad3d",
        "aten.replication_pad3d_backward",
        "aten.roll",
    }
)
_OTHER_WHERE_PERMUTED = frozenset(
    {"aten._batch_norm_with_update", "aten._native_batch_norm_legit", "aten.native_batch_norm"}
)
"""Right for operands that are plain or channels-last."""
_PRODUCTS = FOLDED_PRODUCTS | {"frx_graph.product"}
"""Their results are plain, whatever they are given."""
_ARITHMETIC = frozenset({"aten.add", "aten.sub", "aten.mul", "aten.div"})
_NORM_GRADIENTS = frozenset({torch.ops.aten.native_batch_norm_backward.default})
RESHAPING_VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})
"""Views that raise where their operand lies otherwise than they need."""


def is_doubtful(node: fx.Node) -> bool:
    """True if the strides in `node.meta["val"]` may be others when the node is run.

    So too wherever dimensions of size 1 make an order ambiguous, which operators and fakes decide differently: after a
    convolution to one channel in channels-last, `1 - x` and a 3-D convolution.
    """
    value = node.meta["val"]
    if not isinstance(value, Tensor):
        return False
    call = node.args[0] if node.target is operator.getitem else node
    assert isinstance(call, fx.Node)
    if isinstance(call.target, OpOverload):
        if is_view(call):
            return False
        name = str(call.target.overloadpacket)
        if makes_other_strides(call.target) or (name in _OTHER_WHERE_PERMUTED and _reads_permuted(call)):
            return True
    values = [value, *(source.meta.get("val") for source in call.all_input_nodes[:2])]
    # A batch of one stands outermost in every order that is asked for.
    return any(isinstance(v, Tensor) and v.dim() == value.dim() > 2 and 1 in v.shape[1:] for v in values)


def doubtful_values(facts: GraphFacts, inputs: Collection[str] = ()) -> frozenset[str]:
    """The values of a graph as it was traced whose strides may be others when it is run: those that `is_doubtful` tells
    of, where not all operands are plain, views that have others than their fakes for some size, `inputs`, and what lies
    as these do."""
    found = set(inputs)
    for op in facts.ops:
        if is_told_order(op) or op.operator in _PRODUCTS:
            continue
        operands = facts.input_values(op)
        mixed = not op.view and not all(map(_is_plain, operands))
        listed = op.operator in _OTHER_THAN_FAKE | _OTHER_WHERE_PERMUTED
        for result in facts.output_values(op):
            if op.operator == "aten.convolution_backward" and result.shape == operands[2].shape:
                # The weight's gradient, of which `frx_graph.capture.gradient_strides` knows.
                continue
            # Convolutions go by their images: a weight of single pixels leaves no doubt.
            first = operands[: 1 if op.operator in CONVOLUTIONS else 2]
            leading = [value for value in first if len(value.shape) == len(result.shape)]
            if op.operator == "aten.convolution":
                ambiguous = _lies_in_either_order(operands[0].shape)
            else:
                ambiguous = any(is_ambiguous(value.shape) for value in (result, *leading))
            follows = any(value.name in found for value in operands)
            led = _is_led(op, result, operands, found)
            odd = not _is_arithmetic(op, operands) and any(map(_has_odd_batch, (result, *leading)))
            is_own = mixed and (listed or odd or (ambiguous and not led))
            if is_own or _is_misread_view(op, facts) or (follows and not led):
                found.add(result.name)
    return frozenset(found)


def _is_plain(value: ValueFacts) -> bool:
    """True for the strides of a new tensor, those of dimensions of size 1 included."""
    return value.strides == strides_for_order(value.shape, plain_order(value.shape))


def _has_odd_batch(value: ValueFacts) -> bool:
    """True for a batch of one that does not stand outermost in memory, as far as its stride means anything."""
    shape, strides = value.shape, value.strides
    return len(shape) > 2 and shape[0] == 1 and strides[0] < max(map(operator.mul, shape[1:], strides[1:]))


def is_told_order(op: OpFacts) -> bool:
    """True for copies that do not lie as their source does, whatever that is."""
    return op.operator in LAYOUT_COPIES and op.kwargs.get("memory_format") not in (None, torch.preserve_format)


def _is_misread_view(op: OpFacts, facts: GraphFacts) -> bool:
    if op.operator not in ("aten.view", "aten._unsafe_view"):
        return False
    source, result = facts.values[op.inputs[0]], facts.values[op.outputs[0]]
    return result.numel > 0 and view_strides(source.shape, source.strides, result.shape) != result.strides


def _is_led(op: OpFacts, result: ValueFacts, operands: Sequence[ValueFacts], doubtful: Collection[str]) -> bool:
    """True for a pointwise operator whose result lies as operands of its shape do, which are sure: others have no order
    to tell but along one dimension."""
    if not op.pointwise or is_ambiguous(result.shape):
        return False
    told = [value for value in operands if value.shape == result.shape or not has_one_order(value.shape)]
    return any(value.shape == result.shape for value in told) and all(value.name not in doubtful for value in told)


def _is_arithmetic(op: OpFacts, operands: Sequence[ValueFacts]) -> bool:
    """True for operators of two tensors whose fakes are right about batches of one, wherever these stand."""
    return op.operator in _ARITHMETIC and len(operands) == 2


def _lies_in_either_order(shape: Sequence[int]) -> bool:
    """True for images of one channel or one pixel, plain as they are channels-last: of others convolutions know, and
    their fakes do, how they lie (torch 2.15; what came of 50,000 random ones)."""
    return shape[1] == 1 or math.prod(shape[2:]) == 1


def is_ambiguous(shape: Sequence[int]) -> bool:
    """True where dimensions of size 1 let more than one order be told: operators choose one, their fakes another, as a
    sum with a number does after a convolution to one channel (torch 2.15)."""
    return len(shape) > 2 and 1 in shape[1:]


def has_one_order(shape: Sequence[int]) -> bool:
    """True where orders that keep the batch outermost differ in strides of dimensions of size 1 alone."""
    return sum(size != 1 for size in shape[1:]) <= 1


def makes_other_strides(called: object) -> bool:
    """True for operators that are known to make other strides than their fakes of channels-last operands."""
    return isinstance(called, OpOverload) and str(called.overloadpacket) in _OTHER_THAN_FAKE


def lies_otherwise_as_traced(node: fx.Node) -> bool:
    """True where the result lies otherwise than traced though nothing was changed, and with it all that follows:
    operators that make plain results, and whose fakes lay them out as what they are given (torch 2.15)."""
    fast_layer = node.target is torch.ops.aten._transformer_encoder_layer_fwd.default
    if not (fast_layer or makes_other_strides(node.target)):
        return False
    given = node.all_input_nodes[0].meta.get("val")
    return isinstance(given, Tensor) and layout_of(shape_hint(given), stride_hint(given)) is not Layout.PLAIN


def as_run(node: fx.Node, value: Any) -> Any:
    """`value`, what a fake says that `node` gives, with the strides that it has when it is run, as far as those are
    known: fakes of views have others where dimensions are of size 1, and some are views where a copy is needed, as of
    (6, 1, 6) with strides (1, 36, 6) for (36,) (torch 2.15). Raises `RewriteError` for those, and for strides that are
    not known for all sizes."""
    if node.target not in RESHAPING_VIEWS or 0 in shape_hint(value):
        return value
    source = node.all_input_nodes[0].meta["val"]
    strides = view_strides(shape_hint(source), stride_hint(source), shape_hint(value))
    if strides is None:
        raise RewriteError(f"{node.name} would need a copy")
    if strides == stride_hint(value):
        return value
    if not all(isinstance(n, int) for n in (*value.shape, *value.stride())):
        # For other sizes than those of the example nobody has told.
        raise RewriteError(f"{node.name} has other strides than its fake, for sizes that may change")
    return value.as_strided(value.shape, strides, value.storage_offset())


def is_view(node: fx.Node) -> bool:
    """True for operators that say that their result lies in an operand's memory: views, and those that write in
    place."""
    target = node.target
    return isinstance(target, OpOverload) and any(r.alias_info is not None for r in target._schema.returns)


def lies_in_operand(node: fx.Node) -> bool:
    """True for operators whose result lies in an operand's memory, whether they say so or not: `_unsafe_view` does
    not, and autograd takes its result for no view."""
    return is_view(node) or node.target is torch.ops.aten._unsafe_view.default


def misread_gradient(node: fx.Node) -> fx.Node | None:
    """The gradient that a batch norm's backward reads by strides that are not its own: where it is plain and the input
    channels-last, or the other way round, and dimensions of size 1 have other strides than a new tensor's (torch 2.15,
    CPU)."""
    if node.target not in _NORM_GRADIENTS:
        return None
    gradient, image = node.args[:2]
    if not (isinstance(gradient, fx.Node) and isinstance(image, fx.Node)):
        return None
    values = [gradient.meta["val"], image.meta["val"]]
    if values[0].dim() not in MEMORY_FORMATS or all(1 not in value.shape for value in values):
        return None
    alike = any(
        all(value.is_contiguous(memory_format=layout) for value in values)
        for layout in (torch.contiguous_format, MEMORY_FORMATS[values[0].dim()])
    )
    return None if alike else gradient


def _reads_permuted(call: fx.Node) -> bool:
    value = call.all_input_nodes[0].meta.get("val")
    return isinstance(value, Tensor) and layout_of(shape_hint(value), stride_hint(value)) not in (
        Layout.PLAIN,
        Layout.CHANNELS_LAST,
    )
