"""Floating-point operations of one operator call, from shapes.

Matrix products, convolutions and attention follow torch's own formulas (`torch.utils.flop_counter`), a multiply-add
counted as 2. Pooling counts one operation per element of the window. Everything else is counted by
`count_element_flops`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from frx_graph.facts.graph_facts import Argument, GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.facts.operator_signature import TensorSpec, build_signature
from frx_graph.passes.costs.element_flops import count_element_flops

FlopFormula = Callable[..., Any]

_TRAINING_POSITION = 5
"""Position of `training` in batch norms."""
_POOLS = {
    "avg_pool1d": (1, 1), "avg_pool2d": (1, 2), "avg_pool3d": (1, 3), "max_pool2d_with_indices": (1, 2),
    "max_pool3d_with_indices": (1, 3), "avg_pool2d_backward": (2, 2), "avg_pool3d_backward": (2, 3),
}  # fmt: skip
"""Operator → position of the window and spatial rank. One addition or comparison per element of the window."""
_ATTENTION = "aten._scaled_dot_product_"
_ACCUMULATES = {"index_add": 3, "scatter_add": 3, "scatter_reduce": 3, "index_put": 2}
"""Operator → position of the values, each of which is added once."""


def count_flops(op: OpFacts, facts: GraphFacts, formulas: Mapping[str, FlopFormula]) -> int | None:
    """Return the FLOPs of `op`, None without a known formula. `formulas` is `load_flop_formulas()`.

    Attention counts the dense product even where it is causal, as torch's formula does.
    """
    if op.view:
        return 0
    packet = op.operator.removesuffix("_")
    name = packet.rpartition(".")[2]
    if packet == "aten.convolution_backward":
        return _count_convolution_backward(op, facts)
    formula = formulas.get(_find_registered_name(packet, formulas))
    if formula is not None:
        return _apply_formula(formula, op, facts)
    if op.opaque:
        return None
    return _count_per_element(op, name, facts)


def load_flop_formulas() -> dict[str, FlopFormula]:
    """Return torch's registry by operator name, with formulas that the program registered for its own operators."""
    return {str(target): formula for target, formula in flop_registry.items()}


def _find_registered_name(packet: str, formulas: Mapping[str, FlopFormula]) -> str:
    """Return the registered name: all attention kernels do the same, but torch 2.13 has formulas for some only."""
    if packet in formulas or not packet.startswith(_ATTENTION):
        return packet
    return f"{_ATTENTION}flash_attention{'_backward' if packet.endswith('_backward') else ''}"


def _apply_formula(formula: FlopFormula, op: OpFacts, facts: GraphFacts) -> int | None:
    """Apply the formula to tensors without data: some read shapes, those registered with `get_raw` whole tensors."""
    outputs = tuple(_make_meta_tensor(value) for value in facts.get_output_values(op))
    args, kwargs = build_signature(op, facts).make_arguments(_make_meta_tensor)
    try:
        return int(formula(*args, **kwargs, out_val=outputs[0] if len(outputs) == 1 else outputs))
    except (AssertionError, AttributeError, IndexError, TypeError, ValueError):
        # A formula that does not fit this call, such as one of another torch version: the count is unknown.
        return None


def _count_convolution_backward(op: OpFacts, facts: GraphFacts) -> int | None:
    """Count each gradient as a forward. torch's formula does so for one group, but counts the weight's gradient of a
    grouped convolution `groups` times over."""
    if not all(isinstance(argument, ValueRef) for argument in op.args[:3]) or not isinstance(op.args[10], tuple):
        return None
    grad, source, weight = (facts.values[ref.name] for ref in op.args[:3] if isinstance(ref, ValueRef))
    positions = (source if op.args[7] else grad).shape[2:]
    forward = 2 * source.shape[0] * math.prod(positions) * weight.numel
    return forward * sum(1 for wanted in op.args[10][:2] if wanted)


def _count_per_element(op: OpFacts, name: str, facts: GraphFacts) -> int | None:
    outputs, inputs = facts.get_output_values(op), facts.get_input_values(op)
    produced = outputs[0].numel if outputs else 0
    if name in _POOLS:
        position, rank = _POOLS[name]
        window = op.args[position] if len(op.args) > position else None
        windows = facts.values[op.inputs[0]].numel if name.endswith("_backward") else produced
        return _count_window(window, rank) * windows if window is not None else None
    if name == "index_put" and op.args[3:4] != (True,):
        return 0
    if name in _ACCUMULATES:
        source = op.args[_ACCUMULATES[name]] if len(op.args) > _ACCUMULATES[name] else None
        return facts.values[source.name].numel if isinstance(source, ValueRef) else None
    return count_element_flops(
        name,
        produced=produced,
        consumed=inputs[0].numel if inputs else None,
        pointwise=op.pointwise,
        training=op.args[_TRAINING_POSITION : _TRAINING_POSITION + 1] != (False,),
    )


def _count_window(window: Argument, rank: int) -> int:
    """Return the elements of a pooling window, given one side for all dimensions or one for each."""
    sides = [side for side in (window if isinstance(window, tuple) else (window,)) if isinstance(side, int)]
    return math.prod(sides) if len(sides) == rank else sides[0] ** rank


def _make_meta_tensor(tensor: ValueFacts | TensorSpec) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
