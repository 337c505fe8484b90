"""Recognise operators whose kernels compute wrong or less exact numbers on channels-last images.

They leave part of the result uninitialised: other values in every call, NaN among them. A search compared over 22,000
convolutions with float64 (torch 2.15, a CPU with AVX-512). It covered ranks 4 and 5, kernels of 1, 2, 3 and 5, strides
of 1 and 2, with and without groups. All wrong results are of the following kinds; on plain images all were right:

- in bf16, those with one input channel in each group and several output channels: the forward;
- in bf16, those whose image is smaller than the kernel in some dimension, and padded there: the backward, mostly the
  gradient of the weight. So a depth of 2 under a kernel of 3;
- transposed ones of that kind: the gradient of the image, in fp32 as well.

A Xeon with AMX computes the first kind wrongly on plain images, too: there is no right layout to keep.
"""

from __future__ import annotations

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts

_ARGUMENTS = {"aten.convolution": 3, "aten.convolution_backward": 4}
"""Position of `stride`, which padding, dilation, `transposed`, output padding and groups follow."""


def requires_contiguous_input(op: OpFacts, facts: GraphFacts) -> bool:
    """Return True for such a convolution. If only the backward is wrong, in a training step for both."""
    first = _ARGUMENTS.get(op.operator)
    if first is None:
        return False
    backward = op.operator == "aten.convolution_backward"
    images = list_images(op, facts)
    weight = facts.get_operand(op, 2 if backward else 1)
    padding, dilation, transposed, _, groups = op.args[first + 1 : first + 6]
    if not images or weight is None or not isinstance(padding, tuple) or not isinstance(dilation, tuple):
        return False
    if images[0].device.type != "cpu" or len(images[0].shape) not in (4, 5):
        return False
    coarse = images[0].dtype is torch.bfloat16
    if coarse and groups != 1 and weight.shape[1] == 1 and weight.shape[0] != groups:
        return True
    if not (coarse or transposed) or not (facts.train or backward):
        return False
    # A transposed convolution reads what it is the gradient of: either image may be the one.
    image = images[1 if backward else 0]
    read = images if transposed else (image,)
    return any(
        _read_dimension(padding, dim) > 0
        and min(value.shape[dim + 2] for value in read) <= _read_dimension(dilation, dim) * (weight.shape[dim + 2] - 1)
        for dim in range(len(image.shape) - 2)
    )


def list_images(op: OpFacts, facts: GraphFacts) -> tuple[ValueFacts, ...]:
    """Return the images that such a convolution reads besides its weight, in a forward with its result."""
    backward = op.operator == "aten.convolution_backward"
    found = [facts.get_operand(op, 0), *([facts.get_operand(op, 1)] if backward else facts.get_output_values(op))]
    return tuple(value for value in found if value is not None)


def _read_dimension(given: tuple[object, ...], dim: int) -> int:
    """Return the number for this dimension of the image; a list of one holds for all."""
    found = given[dim] if dim < len(given) else given[0]
    return found if isinstance(found, int) else 1


def has_inexact_kernel(op: OpFacts, facts: GraphFacts) -> bool:
    """Return True for a norm whose channels-last kernel keeps fewer digits than the plain one.

    For a group's variance the channels-last kernel takes the mean of squares minus the square of the mean. The plain
    one adds up squares of differences (torch 2.15 and 2.13, CPU, `aten/src/ATen/native/cpu/group_norm_kernel.cpp`). In
    single precision, beside a mean of 10 deviations the result is off by 1e-4 instead of 1e-6, and beside 100 by 1e-2.
    In half precision, with sums in single, rounding of the image is larger than that. Such a norm must keep its traced
    layout, even channels-last.
    """
    if op.operator != "aten.native_group_norm":
        return False
    image = facts.get_input_values(op)[0]
    return image.device.type == "cpu" and image.dtype in (torch.float32, torch.float64)
