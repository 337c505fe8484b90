"""Records of the values and operators of a captured graph, read by every detector and rewrite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import InputKind, Phase
from frx_graph.facts.layout import (
    Layout,
    StridePattern,
    classify_layout,
    classify_strides,
    get_dimension_order,
    is_dense,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ValueRef:
    """An operator argument that is a value of the graph."""

    name: str


Argument: TypeAlias = (
    "ValueRef | int | float | bool | str | complex | torch.dtype | torch.device | torch.layout | "
    "torch.memory_format | tuple[Argument, ...] | None"
)
"""An operator argument; lists become tuples, symbolic sizes their hints, anything else its `repr`."""


@dataclass(frozen=True)
class ValueFacts:
    """One tensor of the graph.

    `strides` are in elements, `bytes` is `numel * itemsize`, `storage` groups values that share memory. Sizes that are
    symbolic appear as their hints, with the dimension listed in `dynamic_dims`; one that depends on data, and makes the
    value `data_dependent`, as 1.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    storage: int
    producer: str | None
    users: tuple[str, ...]
    kind: InputKind | None = None
    path: str = ""
    requires_grad: bool = False
    mutated: bool = False
    user_visible: bool = False
    dynamic_dims: tuple[int, ...] = ()
    data_dependent: bool = False

    @cached_property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return self.numel * self.dtype.itemsize

    @cached_property
    def layout(self) -> Layout:
        """The layout's name."""
        return classify_layout(self.shape, self.strides)

    @cached_property
    def pattern(self) -> StridePattern:
        """Stride class of the operator layout contract."""
        return classify_strides(self.shape, self.strides)

    @property
    def dense(self) -> bool:
        """True for strides without overlap and gaps."""
        return is_dense(self.shape, self.strides)

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions from outermost to innermost in memory."""
        return get_dimension_order(self.shape, self.strides)

    @property
    def is_parameter(self) -> bool:
        """A parameter of the program, as opposed to a buffer, an argument or an intermediate."""
        return self.kind is InputKind.PARAMETER


@dataclass(frozen=True, slots=True)
class OpFacts:
    """One operator call of the graph.

    `target` is the overload (`aten.convolution.default`), `operator` its packet (`aten.convolution`). `inputs` and
    `outputs` name values in argument order. `view` outputs share memory with an input; `mutates` names values written
    in place. `opaque` operators are custom or higher-order: nothing is known about what they do inside. `symbolic`
    are the positions and names of arguments that are numbers which may be others in the next call.
    """

    node: str
    target: str
    operator: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mutates: tuple[str, ...]
    phase: Phase
    site: CallSite
    view: bool = False
    pointwise: bool = False
    opaque: bool = False
    symbolic: frozenset[int | str] = frozenset()


@dataclass(frozen=True)
class GraphFacts:
    """All values and operators of one captured graph, in execution order; `calls` is how often a step runs it.

    `gradients` pairs each parameter with the value that becomes its gradient.
    """

    graph_id: str
    origin: str
    train: bool
    values: Mapping[str, ValueFacts]
    ops: tuple[OpFacts, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    calls: int = 1
    gradients: tuple[tuple[str, str], ...] = ()

    @cached_property
    def op_by_node(self) -> Mapping[str, OpFacts]:
        """Operators by node name."""
        return {op.node: op for op in self.ops}

    @cached_property
    def values_by_storage(self) -> Mapping[int, tuple[ValueFacts, ...]]:
        """Values that share memory, in order of creation."""
        groups: dict[int, list[ValueFacts]] = {}
        for value in self.values.values():
            groups.setdefault(value.storage, []).append(value)
        return {storage: tuple(group) for storage, group in groups.items()}

    def get_producer(self, value: str) -> OpFacts | None:
        """Return the operator that made `value`; None for an input."""
        facts = self.values.get(value)
        return None if facts is None or facts.producer is None else self.op_by_node[facts.producer]

    def get_users(self, value: str) -> tuple[OpFacts, ...]:
        """Return the operators that read `value`, in execution order."""
        return tuple(self.op_by_node[node] for node in self.values[value].users)

    def get_operand(self, op: OpFacts, position: int) -> ValueFacts | None:
        """Return the value at this position of the arguments; None if there is no tensor."""
        argument = op.args[position] if position < len(op.args) else None
        return self.values.get(argument.name) if isinstance(argument, ValueRef) else None

    def get_input_values(self, op: OpFacts) -> tuple[ValueFacts, ...]:
        """Return the tensors that `op` reads."""
        return tuple(self.values[name] for name in op.inputs)

    def get_output_values(self, op: OpFacts) -> tuple[ValueFacts, ...]:
        """Return the tensors that `op` returns."""
        return tuple(self.values[name] for name in op.outputs)

    def has_dynamic_sizes(self, op: OpFacts) -> bool:
        """Return True if a size of the operands or results of `op` may change from call to call."""
        return any(value.dynamic_dims for value in (*self.get_input_values(op), *self.get_output_values(op)))
