"""Map the memory order of an operand to that of an operator's result. Pure functions.

An order names a tensor's dimensions from the outermost to the innermost in memory: `(0, 2, 3, 1)` is channels-last.
Dimensions of size 1 have no place in memory, so two orders are the same if all other dimensions agree. `canonical`
returns the spelling that `facts.layout.dimension_order` uses. Operands are assumed to be dense, with the strides of
`match_memory_format`: views that merge dimensions refuse tensors with gaps, and kernels that look for channels-last
look at the strides of dimensions of size 1. Sizes may be the hints of symbolic ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.facts.graph_facts import Argument, OpFacts
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, get_dimension_order, make_ordered_strides
from frx_graph.facts.operator_overload import get_argument
from frx_graph.rules.layout_operator import DimensionMap, LayoutOperator, Needs

Order = tuple[int, ...]
Shape = tuple[int, ...]


def map_order(kind: DimensionMap, op: OpFacts, shape: Shape, order: Order, result: Shape) -> Order | None:
    """Return the result's order by the map alone; None if the sizes do not fit the map, or a view of that shape would
    need a copy. Raises `ValueError` if `order` is not an order of `shape`."""
    if sorted(order) != list(range(len(shape))):
        raise ValueError(f"{order} is not an order of the dimensions of {shape}")
    if kind is DimensionMap.REGROUP:
        found = compute_view_strides(shape, make_ordered_strides(shape, order), result)
        return None if found is None else get_dimension_order(result, found)
    sources = find_dimension_sources(kind, op, shape, len(result))
    if sources is None or len(sources) != len(result):
        return None
    if kind is DimensionMap.EXPAND and any(
        size != (1 if source is None else shape[source]) for source, size in zip(sources, result, strict=True)
    ):
        return None
    place = {source: dim for dim, source in enumerate(sources) if source is not None}
    mapped = [place[dim] for dim in order if dim in place]
    for dim, source in enumerate(sources):
        if source is None and not _insert_before_next(mapped, dim, result):
            return None
    return canonicalize_order(result, mapped)


def find_dimension_sources(kind: DimensionMap, op: OpFacts, shape: Shape, rank: int) -> tuple[int | None, ...] | None:
    """Return for each dimension of a result its source dimension in the operand, None for a new one. None if the map is
    not one of dimensions, or the operator lacks its arguments. `rank` is the result's."""
    own = make_plain_order(shape)
    dim = get_argument(op, "dim")
    match kind:
        case DimensionMap.SAME:
            return own
        case DimensionMap.PERMUTE:
            dims = _normalize_dims(get_argument(op, "dims"), len(own))
            return dims if dims is not None and len(dims) == len(own) else None
        case DimensionMap.TRANSPOSE if len(own) < 2:
            return own
        case DimensionMap.TRANSPOSE:
            first, second = get_argument(op, "dim0"), get_argument(op, "dim1")
            a, b = (first, second) if isinstance(first, int) and isinstance(second, int) else (-2, -1)
            swapped = list(own)
            swapped[a], swapped[b] = swapped[b], swapped[a]
            return tuple(swapped)
        case DimensionMap.UNSQUEEZE | DimensionMap.STACK if isinstance(dim, int):
            place = dim % (len(own) + 1)
            return (*own[:place], None, *own[place:])
        case DimensionMap.SQUEEZE:
            dims = own if dim is None else _normalize_dims(dim, len(own))
            return None if dims is None else tuple(d for d in own if d not in dims or shape[d] != 1)
        case DimensionMap.REDUCE:
            dims = _normalize_dims(dim, len(own)) or own
            if get_argument(op, "keepdim") is True:
                return own
            return tuple(d for d in own if d not in dims) if rank < len(own) else None
        case DimensionMap.SELECT if isinstance(dim, int):
            return tuple(d for d in own if d != dim % len(own))
        case DimensionMap.EXPAND if rank >= len(own):
            return (*(None,) * (rank - len(own)), *own)
    return None


def supports_order(row: LayoutOperator, shape: Shape, order: Order) -> bool:
    """Return True if the operator's eager kernel takes operands in this order."""
    if row.needs is Needs.LAST_INNERMOST:
        return order[-1] == len(order) - 1
    if row.needs is Needs.MEMORY_FORMAT:
        return canonicalize_order(shape, order) in list_memory_formats(shape)
    return True


def canonicalize_order(shape: Shape, order: Sequence[int]) -> Order:
    """Return the same order, with dimensions of size 1 beside their left neighbours."""
    return get_dimension_order(shape, make_ordered_strides(shape, order))


def make_plain_order(shape: Shape) -> Order:
    """Return the row-major order."""
    return tuple(range(len(shape)))


def match_memory_format(shape: Shape, order: Order) -> Order:
    """Return the order as torch's own copies make it if it is channels-last for `shape`: kernels check the strides of
    dimensions of size 1, too."""
    own = canonicalize_order(shape, order)
    if own != make_plain_order(shape) and own in list_memory_formats(shape):
        return CHANNELS_LAST_ORDER[len(shape)]
    return own


def list_memory_formats(shape: Shape) -> set[Order]:
    """Return plain and, for ranks 4 and 5, channels-last, which may be equal: what torch's kernels ask for."""
    orders = {make_plain_order(shape)}
    return orders | {canonicalize_order(shape, CHANNELS_LAST_ORDER[len(shape)])} if len(shape) in (4, 5) else orders


def _insert_before_next(mapped: list[int], dim: int, result: Shape) -> bool:
    """Put the new dimension into `mapped`, outside of the one that follows it. False if it is long and the last, whose
    place torch does not derive from the operand's order."""
    if dim + 1 in mapped:
        mapped.insert(mapped.index(dim + 1), dim)
        return True
    mapped.append(dim)
    return result[dim] == 1


def compute_view_strides(shape: Shape, strides: Sequence[int], result: Shape) -> tuple[int, ...] | None:
    """Return the strides of a view of shape `result`, by torch's own rule (`aten/src/ATen/TensorUtils.cpp`,
    `computeStride`); None if a copy is needed. For tensors with elements."""
    if not shape:
        return (1,) * len(result)
    found = [0] * len(result)
    view = len(result) - 1
    elements, viewed, base = 1, 1, strides[-1]
    for dim in reversed(range(len(shape))):
        elements *= shape[dim]
        if dim and (shape[dim - 1] == 1 or strides[dim - 1] == elements * base):
            continue
        while view >= 0 and (viewed < elements or result[view] == 1):
            found[view] = viewed * base
            viewed *= result[view]
            view -= 1
        if viewed != elements:
            return None
        elements, viewed, base = 1, 1, strides[dim - 1]
    return tuple(found) if view < 0 else None


def _normalize_dims(given: Argument, rank: int) -> tuple[int, ...] | None:
    """Return dimensions counted from the front; None if none are given."""
    listed = (given,) if isinstance(given, int) else given
    if not isinstance(listed, tuple):
        return None
    return tuple(dim % rank for dim in listed if isinstance(dim, int)) if rank else ()
