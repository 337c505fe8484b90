"""3-D convolutions in bf16 whose backward computes wrong numbers on channels-last volumes.

oneDNN's kernel for the weight's gradient leaves part of it uninitialised where the volume is not as deep as the kernel,
and padded: a depth of 2 under a kernel of 3 gives other values in every call, NaN among them. Seen with torch 2.15 on a
CPU with AVX-512, over kernels of 2, 3 and 5, strides and dilations of 1 and 2, without groups: all that were wrong are
of this kind, and most of them right on plain volumes. fp32 and fp16, and convolutions of rank 4, were right.
"""

from __future__ import annotations

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts, ValueRef

_ARGUMENTS = {"aten.convolution": 3, "aten.convolution_backward": 4}
"""Position of `stride`, which padding, dilation and `transposed` follow."""


def needs_plain_volumes(op: OpFacts, facts: GraphFacts) -> bool:
    """True for such a backward, and in a training step for the convolution that it is the backward of."""
    first = _ARGUMENTS.get(op.operator)
    if first is None or not (facts.train or op.operator == "aten.convolution_backward"):
        return False
    values = volumes_of(op, facts)
    if not values or len(values[0].shape) != 5 or values[0].dtype is not torch.bfloat16:
        return False
    if values[0].device.type != "cpu":
        return False
    weight = _value(op, 2 if op.operator == "aten.convolution_backward" else 1, facts)
    padding, dilation, transposed = op.args[first + 1 : first + 4]
    if weight is None or not isinstance(padding, tuple) or not isinstance(dilation, tuple):
        return False
    taps, before = weight.shape[2], _along(padding)
    reach = _along(dilation) * (taps - 1) + 1
    # A transposed convolution reads what it is the gradient of: either volume may be the one.
    image = values[1 if op.operator == "aten.convolution_backward" else 0]
    depth = min(value.shape[2] for value in values) if transposed else image.shape[2]
    return before > 0 and depth < reach


def volumes_of(op: OpFacts, facts: GraphFacts) -> tuple[ValueFacts, ...]:
    """What such a convolution reads besides its weight, and in a forward also what it makes."""
    if op.operator == "aten.convolution_backward":
        found = [_value(op, 0, facts), _value(op, 1, facts)]
    else:
        found = [_value(op, 0, facts), *facts.output_values(op)]
    return tuple(value for value in found if value is not None)


def _value(op: OpFacts, position: int, facts: GraphFacts) -> ValueFacts | None:
    argument = op.args[position]
    return facts.values.get(argument.name) if isinstance(argument, ValueRef) else None


def _along(given: tuple[object, ...]) -> int:
    """Along the depth; a list of one stands for all dimensions."""
    first = given[0]
    return first if isinstance(first, int) else 1
