"""Predict if Inductor runs all 2-D convolutions of a graph in channels-last, regardless of tensor strides.

Inductor decides once per graph, by rule: this module repeats the rules and constants of
`GraphLowering.decide_layout_opt` in `torch/_inductor/graph.py`. It looks at AOTAutograd's graph, which holds somewhat
more nodes than the eager graph here.
"""

from __future__ import annotations

import math

import torch
from torch.torch_version import TorchVersion

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.support.torch_internals import has_onednn

_NODES_PER_CONVOLUTION = 300
_SMALL_CHANNELS = 64
_GROUPED, _IN_OUT, _SMALL, _DEFAULT = 1.358, 0.725, 0.783, 0.823
"""Mean time in channels-last over time in plain, per kind of convolution, as torch's authors measured them."""


def is_channels_last_forced(
    facts: GraphFacts, phase: Phase, inner: str, torch_version: str = torch.__version__
) -> bool:
    """Return True if `inner` is Inductor and its rules choose channels-last for this phase's graph.

    Before torch 2.15 convolutions of a backward graph were not counted, so that the answer there was always no.
    """
    if inner != "inductor":
        return False
    backward = TorchVersion(torch_version) >= "2.15"
    convolutions = [
        op
        for op in facts.ops
        if op.phase is phase
        and (op.operator == "aten.convolution" or (backward and op.operator == "aten.convolution_backward"))
    ]
    if not convolutions:
        return False
    return _runs_on_onednn(facts, convolutions) or _is_chosen_by_shape(facts, phase, convolutions)


def _runs_on_onednn(facts: GraphFacts, convolutions: list[OpFacts]) -> bool:
    tensors = (value for op in convolutions for value in _find_image_and_weight(op, facts))
    return has_onednn() and all(value.device.type == "cpu" for value in tensors)


def _is_chosen_by_shape(facts: GraphFacts, phase: Phase, convolutions: list[OpFacts]) -> bool:
    nodes = sum(1 for op in facts.ops if op.phase is phase) + len(facts.inputs)
    if nodes >= _NODES_PER_CONVOLUTION * len(convolutions):
        return False
    if any(value.dynamic_dims for op in convolutions for value in _find_image_and_weight(op, facts)):
        return False
    kinds = [_classify_convolution(op, facts) for op in convolutions]
    if facts.train:
        unsuited = any(grouped or narrowing for grouped, narrowing, _ in kinds)
        return not unsuited and not all(small for _, _, small in kinds)
    flops = [_count_flops(op, facts) for op in convolutions]
    ratios = (
        _GROUPED if grouped else _SMALL if small else _IN_OUT if narrowing else _DEFAULT
        for grouped, narrowing, small in kinds
    )
    return sum(count * ratio for count, ratio in zip(flops, ratios, strict=True)) <= sum(flops)


def _find_image_and_weight(op: OpFacts, facts: GraphFacts) -> tuple[ValueFacts, ValueFacts]:
    first = 1 if op.operator == "aten.convolution_backward" else 0
    image, weight = facts.get_input_values(op)[first : first + 2]
    return image, weight


def _classify_convolution(op: OpFacts, facts: GraphFacts) -> tuple[bool, bool, bool]:
    """Return True for each of: grouped (not depthwise), with fewer channels out than in, with few channels."""
    groups = op.args[9] if op.operator == "aten.convolution_backward" else op.args[-1]
    shape = _find_image_and_weight(op, facts)[1].shape
    grouped = isinstance(groups, int) and groups > 1 and shape[1] > 1
    return grouped, shape[0] * 2 <= shape[1] and shape[2] > 1, max(shape[:2]) <= _SMALL_CHANNELS


def _count_flops(op: OpFacts, facts: GraphFacts) -> float:
    """Return the FLOPs of a forward: two per weight and position of the result, or of a transposed one's input."""
    image, weight = _find_image_and_weight(op, facts)
    transposed = len(op.args) > 6 and op.args[6] is True
    places = image if transposed else facts.get_output_values(op)[0]
    return 2.0 * places.shape[0] * math.prod(places.shape[2:]) * weight.numel
