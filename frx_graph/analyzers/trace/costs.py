"""Bytes and FLOPs of an operator call of a trace, where its recorded shapes tell its result's.

The call becomes a graph of one operator, so that the same formulas count as for captured graphs.
"""

from __future__ import annotations

import ast
import functools
import math
from dataclasses import dataclass

import torch
from torch._ops import OpOverload, OpOverloadPacket

from frx_graph.analyzers.trace.convolutions import convolution_output
from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.trace.events import Operand
from frx_graph.evidence.trace.tree import TraceTree
from frx_graph.facts.graph_facts import Argument, GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.facts.layout import contiguous_strides
from frx_graph.passes.costs.operator_flops import flop_formulas, flops_of
from frx_graph.passes.costs.operator_traffic import storage_bytes, traffic_of

_LIKE_FIRST = frozenset(
    {
        "cudnn_batch_norm", "cudnn_batch_norm_backward", "miopen_batch_norm", "miopen_batch_norm_backward",
        "native_batch_norm", "native_batch_norm_backward", "native_layer_norm", "native_layer_norm_backward",
        "native_group_norm", "native_group_norm_backward", "_softmax", "_log_softmax", "_softmax_backward_data",
        "_log_softmax_backward_data",
    }
)  # fmt: skip
"""Operators whose main result has the shape and dtype of their first tensor. Smaller results (statistics, gradients of
scales) are left out of the bytes."""
_CONVOLUTIONS = frozenset({"cudnn_convolution", "miopen_convolution", "mkldnn_convolution", "_slow_conv2d_forward"})
_COMPARISONS = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "logical_and", "logical_or", "logical_not"}
)
"""Pointwise operators whose result is of another dtype than their operands."""
_LARGEST = 1 << 48
"""Elements of a tensor that no machine holds; torch refuses to reason about sizes that overflow."""
_RESULT = "result"


@dataclass(frozen=True, slots=True)
class CallCost:
    """Compulsory traffic and FLOPs of one call, and the dtype that it computes in."""

    bytes: int
    flops: int
    dtype: torch.dtype

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes


_SUMMED_PRODUCTS = frozenset({"addmm", "baddbmm"})


class CallCosts:
    """Costs of the calls of one tree; calls with the same arguments are counted once."""

    def __init__(self, tree: TraceTree) -> None:
        self._tree = tree
        self._formulas = flop_formulas()
        self._known: dict[tuple[str, tuple[Operand | None, ...], tuple[str, ...], Operand | None], CallCost | None] = {}

    def of(self, operator: int) -> CallCost | None:
        """The cost of the call at an index; None where the result's shape or the operator's arithmetic is not known."""
        call = self._tree.operators[operator]
        namespace, _, name = call.name.partition("::")
        operands = call.operands or ()
        if namespace != "aten" or not all(_countable(operand) for operand in operands) or not any(operands):
            return None
        result = convolution_output(self._tree, operator) if name in _CONVOLUTIONS else None
        key = (name, operands, call.concrete, result)
        if key not in self._known:
            self._known[key] = self._count(*key)
        return self._known[key]

    def _count(
        self, name: str, operands: tuple[Operand | None, ...], concrete: tuple[str, ...], result: Operand | None
    ) -> CallCost | None:
        result = _result(name, operands) if name not in _CONVOLUTIONS else result
        if result is None or result.dtype is None or not _countable(result):
            return None
        if name in _CONVOLUTIONS:
            name, operands = "convolution", operands[:2]
            arguments: tuple[Argument, ...] = (ValueRef("0"), ValueRef("1"), None, 1, 0, 1, False)
        else:
            # A trace writes keyword arguments like positional ones; of a product only the factors count.
            operands = operands[: 3 if name in _SUMMED_PRODUCTS else _argument_count(name)]
            arguments = tuple(
                ValueRef(str(position)) if operand is not None else _scalar(concrete, position)
                for position, operand in enumerate(operands)
            )
        facts = _one_call(name, operands, arguments, result)
        flops = flops_of(facts.ops[0], facts, self._formulas)
        traffic = traffic_of(facts.ops[0], facts, storage_bytes(facts)).bytes
        return CallCost(traffic, flops, result.dtype) if flops is not None and traffic else None


def _countable(operand: Operand | None) -> bool:
    """True for no tensor, and for one whose dtype is known and whose size a tensor can have."""
    return operand is None or (operand.dtype is not None and math.prod(operand.shape) < _LARGEST)


@functools.lru_cache(maxsize=1024)
def is_pointwise(name: str) -> bool:
    """True if torch tags an overload of the ATen operator `name` as pointwise."""
    return any(torch.Tag.pointwise in overload.tags for overload in _overloads(name))


def is_memory_bound_operator(name: str) -> bool:
    """True for a pointwise operator, a normalization or a copy: a handful of operations for each element moved."""
    namespace, _, name = name.partition("::")
    return namespace == "aten" and (name in _LIKE_FIRST or name == "copy_" or is_pointwise(name))


@functools.lru_cache(maxsize=1024)
def _argument_count(name: str) -> int | None:
    """The most arguments that an overload takes without `out`, which a trace appends."""
    counts = [sum(not a.is_out for a in overload._schema.arguments) for overload in _overloads(name)]
    return max(counts, default=None)


def _overloads(name: str) -> list[OpOverload]:
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() and not name.startswith("__") else None
    if not isinstance(packet, OpOverloadPacket):
        return []
    names: list[str] = packet.overloads()
    return [getattr(packet, overload) for overload in names]


def _result(name: str, operands: tuple[Operand | None, ...]) -> Operand | None:
    """Shape and dtype of the result."""
    tensors = [operand for operand in operands[: _argument_count(name)] if operand is not None]
    shapes = [tensor.shape for tensor in tensors]
    if not tensors:
        return None
    first = tensors[0]
    if name in _LIKE_FIRST or name == "copy_":
        return first
    if name in ("mm", "bmm") and len(shapes) == 2 and len(shapes[0]) == len(shapes[1]) >= 2:
        return Operand((*shapes[0][:-1], shapes[1][-1]), first.dtype)
    if name in _SUMMED_PRODUCTS and len(shapes) == 3 and len(shapes[1]) == len(shapes[2]) >= 2:
        return Operand((*shapes[1][:-1], shapes[2][-1]), first.dtype)
    floating = first.dtype is not None and first.dtype.is_floating_point
    mixed = len({tensor.dtype for tensor in tensors if tensor.shape}) > 1
    if not floating or mixed or name in _COMPARISONS or not is_pointwise(name):
        return None
    try:
        return Operand(tuple(torch.broadcast_shapes(*shapes)), first.dtype)
    except RuntimeError:
        return None


def _scalar(concrete: tuple[str, ...], position: int) -> Argument:
    """A number, flag or list of numbers that the trace wrote down; None for anything else."""
    text = concrete[position] if position < len(concrete) else ""
    if not text or len(text) > 200:
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if isinstance(value, list):
        return tuple(item for item in value if isinstance(item, (int, float)))
    return value if isinstance(value, (bool, int, float)) else None


def _one_call(
    name: str, operands: tuple[Operand | None, ...], arguments: tuple[Argument, ...], result: Operand
) -> GraphFacts:
    values = {str(i): _value(str(i), i, operand, None) for i, operand in enumerate(operands) if operand is not None}
    inputs = tuple(values)
    in_place = name.endswith("_")
    if not in_place:
        values[_RESULT] = _value(_RESULT, len(operands), result, name)
    op = OpFacts(
        node=name,
        target=f"aten.{name}.default",
        operator=f"aten.{name}",
        args=arguments,
        kwargs={},
        inputs=inputs,
        outputs=inputs[:1] if in_place else (_RESULT,),
        mutates=inputs[:1] if in_place else (),
        phase=Phase.FORWARD,
        site=UNKNOWN_SITE,
        pointwise=is_pointwise(name),
    )
    return GraphFacts("", "", False, values, (op,), inputs, op.outputs)


def _value(name: str, storage: int, operand: Operand, producer: str | None) -> ValueFacts:
    assert operand.dtype is not None, "calls with operands of unknown dtype are not counted"
    return ValueFacts(
        name=name,
        shape=operand.shape,
        strides=operand.strides if operand.strides is not None else contiguous_strides(operand.shape),
        dtype=operand.dtype,
        device=torch.device("cpu"),
        storage=storage,
        producer=producer,
        users=(),
    )
