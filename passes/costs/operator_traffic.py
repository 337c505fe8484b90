"""Count the bytes that one operator call must move: distinct bytes that it reads, and bytes that it writes.

This is the compulsory traffic, as in the roofline model (Williams, Waterman, Patterson 2009). A kernel that reads its
input twice moves more; one whose input is still in a cache moves less. Views and allocations move nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frx_graph.facts.graph_facts import Argument, GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.facts.layout import compute_storage_extent, count_distinct_elements

_ALLOCATES = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
_METADATA_ONLY = frozenset(
    {"wait_tensor", "as_strided_", "t_", "transpose_", "squeeze_", "unsqueeze_", "detach_", "set_", "resize_"}
)
_IGNORES_INPUT = frozenset(
    {
        "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros", "new_ones",
        "new_full", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_", "log_normal_",
        "cauchy_", "geometric_",
    }
)  # fmt: skip
"""Operators that take a tensor for its shape or its memory only and never read its elements."""
_OVERWRITES_SELF = frozenset({"copy_", "copy"})
_GATHERS = frozenset({"embedding", "gather", "index_select", "index", "_unsafe_index", "take"})
"""Operators that read of their first tensor only the elements that they return."""
_SCATTERS = {"scatter_": 2, "scatter_add_": 2, "index_add_": 3, "index_copy_": 3}
"""In-place operator → position of the tensor that has as many elements as are written."""
_ACCUMULATES = frozenset({"index_add_", "scatter_add_"})


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes read and bytes written by one call."""

    read: int
    written: int

    @property
    def bytes(self) -> int:
        """All traffic."""
        return self.read + self.written


NO_TRAFFIC = Traffic(0, 0)


def count_storage_bytes(facts: GraphFacts) -> Mapping[int, int]:
    """Return the bytes of each storage, as far as any value of the graph reaches."""
    return {
        storage: max(compute_storage_extent(value.shape, value.strides) * value.dtype.itemsize for value in group)
        for storage, group in facts.values_by_storage.items()
    }


def count_traffic(op: OpFacts, facts: GraphFacts, storages: Mapping[int, int]) -> Traffic:
    """Return the bytes read and written by `op`; `storages` is `storage_bytes(facts)`.

    What a gather reads is bounded by what it returns: how often the indices name one row is not known. A custom
    operator is taken to read all its inputs and to write all its outputs.
    """
    name = op.operator.rpartition(".")[2]
    if op.view or is_allocation(op) or name in _METADATA_ONLY:
        return NO_TRAFFIC
    outputs = find_fresh_outputs(op, facts)
    if not outputs and not op.opaque:
        return NO_TRAFFIC
    written = sum(value.bytes for value in outputs)
    if name in _IGNORES_INPUT:
        return Traffic(0, written)
    inputs = [facts.values[value] for value in dict.fromkeys(op.inputs)]
    if name in _OVERWRITES_SELF:
        return Traffic(count_distinct_bytes(inputs[1:], storages), written)
    if name in _GATHERS and inputs:
        read = min(written, count_distinct_bytes(inputs[:1], storages)) + count_distinct_bytes(inputs[1:], storages)
        return Traffic(read, written)
    if name in _SCATTERS or name == "index_put_":
        written = _count_scattered_bytes(op, name, facts)
        accumulates = name in _ACCUMULATES or (name == "index_put_" and op.args[3:4] == (True,))
        return Traffic(count_distinct_bytes(inputs[1:], storages) + (written if accumulates else 0), written)
    return Traffic(count_distinct_bytes(inputs, storages), written)


def is_allocation(op: OpFacts) -> bool:
    """Return True for an operator that makes memory and leaves it as it is."""
    return op.operator.rpartition(".")[2] in _ALLOCATES


def count_operand_bytes(op: OpFacts, value: ValueFacts, facts: GraphFacts) -> int:
    """Return the bytes of one operand that `op` reads: nothing if it only takes its shape or overwrites it."""
    name = op.operator.rpartition(".")[2]
    first = op.inputs[:1] == (value.name,)
    if name in _IGNORES_INPUT or (first and (name in _OVERWRITES_SELF or name in _SCATTERS)):
        return 0
    read = count_distinct_bytes([value], {})
    return min(read, sum(out.bytes for out in facts.get_output_values(op))) if first and name in _GATHERS else read


def find_fresh_outputs(op: OpFacts, facts: GraphFacts) -> list[ValueFacts]:
    """Return the outputs that the call writes: those that it mutates, and those in memory that no input has.

    `_unsafe_view` declares no alias but returns one, so storages decide and not the schema.
    """
    mutated = {facts.values[name].storage for name in op.mutates if name in facts.values}
    held = {facts.values[name].storage for name in op.inputs} - mutated
    outputs = [value for value in facts.get_output_values(op) if value.storage not in held]
    returned = {value.storage for value in outputs}
    outputs.extend(facts.values[name] for name in op.mutates if facts.values[name].storage not in returned)
    return outputs


def count_distinct_bytes(values: Sequence[ValueFacts], storages: Mapping[int, int]) -> int:
    """Return the bytes of memory that the values cover: expanded dimensions once, overlaps at most their storage."""
    by_storage: dict[int, int] = {}
    for value in values:
        elements = min(
            count_distinct_elements(value.shape, value.strides), compute_storage_extent(value.shape, value.strides)
        )
        by_storage[value.storage] = by_storage.get(value.storage, 0) + elements * value.dtype.itemsize
    return sum(min(total, storages.get(storage, total)) for storage, total in by_storage.items())


def _count_scattered_bytes(op: OpFacts, name: str, facts: GraphFacts) -> int:
    """Return the bytes of the first argument that an in-place scatter writes: all of it at most."""
    target = facts.values[op.inputs[0]]
    if name == "index_put_":
        indices = [_find_tensor(index, facts) for index in op.args[1]] if isinstance(op.args[1], tuple) else []
        count = max((index.numel for index in indices if index is not None), default=1)
        for dim, size in enumerate(target.shape):
            if dim >= len(indices) or indices[dim] is None:
                count *= size
    else:
        source = _find_tensor(op.args[_SCATTERS[name]], facts)
        count = source.numel if source is not None else target.numel
    return min(count, target.numel) * target.dtype.itemsize


def _find_tensor(argument: Argument, facts: GraphFacts) -> ValueFacts | None:
    return facts.values.get(argument.name) if isinstance(argument, ValueRef) else None
