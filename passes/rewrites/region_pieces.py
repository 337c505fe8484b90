"""Recognise what oneDNN's primitives can compute in a graph with constant weights: pieces of one or several operators.

A piece has one result and reads values and constants. Activations that torch has taken apart, such as GELU, are one
piece again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.facts.operator_overload import get_argument
from frx_graph.facts.zero_padding import OPERATOR as PADDING
from frx_graph.facts.zero_padding import repeat_number, split_padding
from frx_graph.ops.onednn.steps import Following
from frx_graph.passes.rewrites.rewrite import RewriteSubject

_MOST_DIMENSIONS = 6
"""Of values that are computed with elementwise; more were not tried."""


@dataclass(frozen=True)
class Convolution:
    """A convolution, with the zeros of a padding in front of it."""

    image: str
    weight: str
    bias: str | None
    stride: tuple[int, ...]
    before: tuple[int, ...]
    behind: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


@dataclass(frozen=True)
class Product:
    """A product of rows with a matrix."""

    rows: str
    weight: str
    bias: str | None


@dataclass(frozen=True)
class Pooling:
    """A maximum or average of windows."""

    image: str
    algorithm: Literal["max", "average", "average_inside"]
    window: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    behind: tuple[int, ...]


@dataclass(frozen=True)
class Elementwise:
    """An operation on each element of `value`: a number's, an activation, or one with the value or constant `other`."""

    value: str
    following: Following
    other: str | None = None


@dataclass(frozen=True)
class Concatenation:
    """Values side by side."""

    values: tuple[str, ...]
    dimension: int


@dataclass(frozen=True)
class Reshape:
    """The elements in plain order, in another shape."""

    value: str


Work = Convolution | Product | Pooling | Elementwise | Concatenation | Reshape


@dataclass(frozen=True)
class Piece:
    """Operators that one primitive computes: their nodes, the last result, and what is read, without constants."""

    nodes: tuple[str, ...]
    result: str
    reads: tuple[str, ...]
    work: Work


def find_pieces(subject: RewriteSubject) -> list[Piece]:
    """Return the pieces of a graph, in the order of their last operators. No two share an operator."""
    facts = subject.facts
    composite = {piece.nodes[-1]: piece for piece in _find_composites(facts)}
    taken = {node for piece in composite.values() for node in piece.nodes}
    pieces = []
    for op in facts.ops:
        if op.node in composite:
            piece = composite[op.node]
        elif op.node in taken or not (work := _recognize(op, subject)):
            continue
        else:
            piece = _make_piece(op, work, subject)
        if _is_computable(piece, subject):
            pieces.append(piece)
    return pieces


def _make_piece(op: OpFacts, work: Work, subject: RewriteSubject) -> Piece:
    reads = tuple(dict.fromkeys(name for name in _list_reads(work) if name not in subject.constants))
    nodes = [op.node]
    if isinstance(work, Convolution) and work.image != op.inputs[0]:
        nodes.insert(0, _get_maker(op.inputs[0], subject.facts).node)
    return Piece(tuple(nodes), op.outputs[0], reads, work)


def _list_reads(work: Work) -> Iterator[str]:
    match work:
        case Convolution() | Pooling():
            yield work.image
        case Product():
            yield work.rows
        case Elementwise():
            yield from (name for name in (work.value, work.other) if name is not None)
        case Concatenation():
            yield from work.values
        case Reshape():
            yield work.value


def _get_maker(name: str, facts: GraphFacts) -> OpFacts:
    maker = facts.get_producer(name)
    assert maker is not None
    return maker


def _is_computable(piece: Piece, subject: RewriteSubject) -> bool:
    """Return True if all values are dense, of fixed size, in single precision on the CPU, and written once."""
    facts = subject.facts
    values = [facts.values[name] for name in (*piece.reads, piece.result)]
    ops = [facts.op_by_node[node] for node in piece.nodes]
    return (
        bool(piece.reads)
        and all(_is_plain_value(value) for value in values)
        and not any(op.mutates or op.symbolic or facts.has_dynamic_sizes(op) for op in ops)
        and not _shares_returned_memory(facts.values[piece.result], facts)
    )


def _is_plain_value(value: ValueFacts) -> bool:
    return (
        value.dtype is torch.float32
        and value.device.type == "cpu"
        and value.dense
        and not (value.mutated or value.data_dependent or value.dynamic_dims)
        and 0 not in value.shape
        and 2 <= len(value.shape) <= _MOST_DIMENSIONS
    )


def _shares_returned_memory(value: ValueFacts, facts: GraphFacts) -> bool:
    """Return True for an output whose memory another output or an input has, too: callers may see that."""
    sharing = facts.values_by_storage[value.storage]
    returned = [each for each in sharing if each.name in facts.outputs]
    return bool(returned) and (len(returned) > 1 or any(each.name in facts.inputs for each in sharing))


def _recognize(op: OpFacts, subject: RewriteSubject) -> Work | None:
    """Return what one operator is for oneDNN, if anything."""
    reader = _READERS.get(op.operator)
    if reader is None or len(op.outputs) < 1:
        return None
    return reader(op, subject)


def _read_convolution(op: OpFacts, subject: RewriteSubject) -> Convolution | None:
    facts, (image, weight, *bias) = subject.facts, op.inputs
    kernel = facts.values[weight].shape[2:]
    rank = len(kernel)
    if rank not in (2, 3) or get_argument(op, "transposed") or not subject.constants.issuperset(op.inputs[1:]):
        return None
    padding = repeat_number(get_argument(op, "padding"), rank)
    before, behind = list(padding), list(padding)
    maker = facts.get_producer(image)
    if maker is not None and maker.operator == PADDING and facts.get_users(image) == (op,):
        sides = split_padding(maker, rank + 2)
        if sides is not None and image not in facts.outputs:
            image = maker.inputs[0]
            before = [own + side.front for own, side in zip(padding, sides, strict=True)]
            behind = [own + side.back for own, side in zip(padding, sides, strict=True)]
    if min(*before, *behind) < 0:
        return None
    groups = get_argument(op, "groups")
    assert isinstance(groups, int)
    return Convolution(
        image,
        weight,
        bias[0] if bias else None,
        repeat_number(get_argument(op, "stride"), rank),
        tuple(before),
        tuple(behind),
        repeat_number(get_argument(op, "dilation"), rank),
        groups,
    )


def _read_product(op: OpFacts, subject: RewriteSubject) -> Product | None:
    *bias, rows, weight = op.inputs
    values, constants = subject.facts.values, subject.constants
    if not constants.issuperset((*bias, weight)) or len(bias) != (op.operator == "aten.addmm"):
        return None
    if bias and (values[bias[0]].shape != values[weight].shape[1:] or _scales_operands(op)):
        return None
    return Product(rows, weight, bias[0] if bias else None)


def _scales_operands(op: OpFacts) -> bool:
    return any(get_argument(op, name) != 1 for name in ("alpha", "beta"))


def _read_maximum(op: OpFacts, subject: RewriteSubject) -> Pooling | None:
    """Read a maximum pooling whose indices nothing uses."""
    facts = subject.facts
    indices = op.outputs[1:]
    if any(facts.get_users(name) or name in facts.outputs for name in indices) or get_argument(op, "ceil_mode"):
        return None
    window = get_argument(op, "kernel_size")
    assert isinstance(window, tuple)
    # One operator pools images and volumes.
    if len(window) > 2 or repeat_number(get_argument(op, "dilation"), 2) != (1, 1):
        return None
    return _make_pooling(op, "max", repeat_number(window, 2), facts)


def _read_average(op: OpFacts, subject: RewriteSubject) -> Pooling | None:
    if get_argument(op, "ceil_mode") or get_argument(op, "divisor_override") is not None:
        return None
    window = repeat_number(get_argument(op, "kernel_size"), 2)
    if get_argument(op, "count_include_pad"):
        return _make_pooling(op, "average", window, subject.facts)
    return _make_pooling(op, "average_inside", window, subject.facts)


def _make_pooling(
    op: OpFacts, algorithm: Literal["max", "average", "average_inside"], window: tuple[int, ...], facts: GraphFacts
) -> Pooling | None:
    image, result = facts.values[op.inputs[0]].shape, facts.values[op.outputs[0]].shape
    if len(image) != 4:
        return None
    stride = repeat_number(get_argument(op, "stride") or window, 2)
    padding = repeat_number(get_argument(op, "padding"), 2)
    ends = [(n - 1) * by + size for n, by, size in zip(result[2:], stride, window, strict=True)]
    behind = [end - size - front for end, size, front in zip(ends, image[2:], padding, strict=True)]
    return Pooling(op.inputs[0], algorithm, window, stride, padding, tuple(max(0, size) for size in behind))


def _read_mean(op: OpFacts, subject: RewriteSubject) -> Pooling | None:
    """Read the mean over all pixels of an image."""
    shape = subject.facts.values[op.inputs[0]].shape
    dimensions = get_argument(op, "dim")
    if len(shape) != 4 or not isinstance(dimensions, tuple):
        return None
    if sorted(int(each) % 4 for each in dimensions) != [2, 3] or get_argument(op, "dtype") is not None:  # type: ignore[arg-type]
        return None
    return Pooling(op.inputs[0], "average", shape[2:], (1, 1), (0, 0), (0, 0))


def _read_arithmetic(op: OpFacts, subject: RewriteSubject) -> Elementwise | None:
    left, right = op.args[:2]
    name = op.operator.removeprefix("aten.")
    if _has_options(op):
        return None
    if isinstance(right, (int, float)) and isinstance(left, ValueRef):
        number = float(right)
        factors = {"add": (1.0, number), "sub": (1.0, -number), "mul": (number, 0.0)}
        if name == "div":
            factors["div"] = (1 / number, 0.0) if number else (math.nan, 0.0)
        alpha, beta = factors[name]
        return Elementwise(left.name, Following("linear", alpha, beta)) if math.isfinite(alpha + beta) else None
    if not (isinstance(left, ValueRef) and isinstance(right, ValueRef)) or name == "div":
        return None
    value, other = left.name, right.name
    if name != "sub" and value in subject.constants:
        value, other = other, value
    return _combine(op, name, value, other, subject)


def _combine(op: OpFacts, name: str, value: str, other: str, subject: RewriteSubject) -> Elementwise | None:
    """Return a sum or product whose second operand has the shape of the result, or one number for each channel."""
    values = subject.facts.values
    result = values[op.outputs[0]].shape
    if name != "sub" and values[value].shape != result:
        value, other = other, value
    if values[value].shape != result or value in subject.constants:
        return None
    constant = other in subject.constants
    if name == "sub" and not constant:
        return None
    padded = (1,) * (len(result) - len(values[other].shape)) + values[other].shape
    broadcast = [size for size, full in zip(padded, result, strict=True) if size != full]
    if any(size != 1 for size in broadcast) or values[other].dtype is not torch.float32:
        return None
    if not constant and len(values[other].shape) != len(result):
        return None
    match name:
        case "add" | "sub" | "mul" as algorithm:
            return Elementwise(value, Following(algorithm), other)
    return None


def _read_activation(op: OpFacts, _subject: RewriteSubject) -> Elementwise | None:
    following = _make_activation(op)
    return None if following is None else Elementwise(op.inputs[0], following)


def _make_activation(op: OpFacts) -> Following | None:
    def read_number(name: str, default: float) -> float:
        value = get_argument(op, name)
        return default if value is None else float(value) if isinstance(value, (int, float)) else math.nan

    match op.operator:
        case "aten.relu":
            return Following("relu")
        case "aten.sigmoid":
            return Following("sigmoid")
        case "aten.tanh":
            return Following("tanh")
        case "aten.clamp_min":
            lowest, highest = read_number("min", math.nan), math.inf
        case "aten.clamp_max":
            lowest, highest = -math.inf, read_number("max", math.nan)
        case "aten.clamp":
            lowest, highest = read_number("min", -math.inf), read_number("max", math.inf)
        case "aten.hardtanh":
            lowest, highest = read_number("min_val", math.nan), read_number("max_val", math.nan)
        case _:
            return None
    if not lowest <= highest:
        return None
    return Following("relu") if (lowest, highest) == (0, math.inf) else Following("clip", lowest, highest)


def _read_concatenation(op: OpFacts, subject: RewriteSubject) -> Concatenation | None:
    dimension = get_argument(op, "dim")
    rank = len(subject.facts.values[op.outputs[0]].shape)
    if not isinstance(dimension, int) or rank != 4 or dimension % rank != 1 or len(op.inputs) < 2:
        return None
    return None if subject.constants & set(op.inputs) else Concatenation(op.inputs, 1)


def _read_reshape(op: OpFacts, subject: RewriteSubject) -> Reshape | None:
    image, result = (subject.facts.values[name].shape for name in (op.inputs[0], op.outputs[0]))
    return Reshape(op.inputs[0]) if math.prod(image) == math.prod(result) else None


def _read_strides(op: OpFacts, subject: RewriteSubject) -> Reshape | None:
    """Read a view with the operand's own strides, where sizes of 1 have others."""
    image, result = (subject.facts.values[name] for name in (op.inputs[0], op.outputs[0]))
    pairs = zip(image.shape, image.strides, result.strides, strict=False)
    same = image.shape == result.shape and all(size == 1 or one == other for size, one, other in pairs)
    return Reshape(op.inputs[0]) if same and get_argument(op, "storage_offset") is None else None


_READERS: Mapping[str, Callable[[OpFacts, RewriteSubject], Work | None]] = {
    "aten.convolution": _read_convolution,
    "aten.mm": _read_product,
    "aten.addmm": _read_product,
    "aten.max_pool2d_with_indices": _read_maximum,
    "prims._low_memory_max_pool_with_offsets": _read_maximum,
    "aten.avg_pool2d": _read_average,
    "aten.mean": _read_mean,
    **dict.fromkeys(("aten.add", "aten.sub", "aten.mul", "aten.div"), _read_arithmetic),
    **dict.fromkeys(
        ("aten.relu", "aten.sigmoid", "aten.tanh", "aten.clamp", "aten.clamp_min", "aten.clamp_max", "aten.hardtanh"),
        _read_activation,
    ),
    "aten.cat": _read_concatenation,
    "aten.as_strided": _read_strides,
    **dict.fromkeys(("aten.view", "aten._unsafe_view", "aten.unsqueeze", "aten.squeeze"), _read_reshape),
}


def _find_composites(facts: GraphFacts) -> Iterator[Piece]:
    """Find SiLU, hardswish and GELU, which are taken apart before weights are frozen."""
    for op in facts.ops:
        found = None
        match op.operator:
            case "aten.exp":
                found = _match_silu(op, facts)
            case "aten.add":
                found = _match_hardswish(op, facts)
            case "aten.erf":
                found = _match_gelu(op, facts)
        if found is not None:
            yield found


def _match_silu(exponential: OpFacts, facts: GraphFacts) -> Piece | None:
    """Match x / (exp(-x) + 1)."""
    negated = facts.get_producer(exponential.inputs[0])
    added = _get_only_reader(exponential, facts)
    if negated is None or negated.operator != "aten.neg" or _get_only_reader(negated, facts) is not exponential:
        return None
    if added is None or added.operator != "aten.add" or added.args[1:] != (1,) or _has_options(added):
        return None
    value, quotient = negated.inputs[0], _get_only_reader(added, facts)
    if (
        quotient is None
        or quotient.operator != "aten.div"
        or quotient.inputs != (value, added.outputs[0])
        or _has_options(quotient)
    ):
        return None
    return _make_composite((negated, exponential, added, quotient), value, Following("swish", 1.0))


def _match_hardswish(added: OpFacts, facts: GraphFacts) -> Piece | None:
    """Match x * min(max(x + 3, 0), 6) / 6."""
    ops = [added]
    for operator, numbers in (
        ("aten.clamp_min", (0,)),
        ("aten.clamp_max", (6,)),
        ("aten.mul", None),
        ("aten.div", (6,)),
    ):
        reader = _get_only_reader(ops[-1], facts)
        if reader is None or reader.operator != operator or (numbers is not None and reader.args[1:] != numbers):
            return None
        ops.append(reader)
    value = added.inputs[0]
    if _has_options(added) or _has_options(ops[-1]):
        return None
    if added.args[1:] != (3,) or {*ops[3].inputs} != {value, ops[2].outputs[0]}:
        return None
    return _make_composite(ops, value, Following("hardswish", 1 / 6, 0.5))


def _match_gelu(erf: OpFacts, facts: GraphFacts) -> Piece | None:
    """Match x / 2 * (erf(x / sqrt(2)) + 1)."""
    scaled = facts.get_producer(erf.inputs[0])
    value = None if scaled is None else _match_factor(scaled, math.sqrt(0.5))
    added = _get_only_reader(erf, facts)
    if (
        scaled is None
        or value is None
        or added is None
        or added.operator != "aten.add"
        or added.args[1:] != (1,)
        or _has_options(added)
    ):
        return None
    product = _get_only_reader(added, facts)
    if _get_only_reader(scaled, facts) is not erf or product is None or product.operator != "aten.mul":
        return None
    others = [name for name in product.inputs if name != added.outputs[0]]
    half = facts.get_producer(others[0]) if len(others) == 1 else None
    if half is None or _match_factor(half, 0.5) != value or _get_only_reader(half, facts) is not product:
        return None
    return _make_composite((half, scaled, erf, added, product), value, Following("gelu"))


def _match_factor(op: OpFacts, factor: float) -> str | None:
    """Return what `op` multiplies by `factor`; None if it does something else."""
    if op.operator != "aten.mul" or len(op.inputs) != 1 or not isinstance(op.args[1], float):
        return None
    return op.inputs[0] if math.isclose(op.args[1], factor, rel_tol=1e-6) else None


def _has_options(op: OpFacts) -> bool:
    """Return True for a sum with a factor, or a quotient that is rounded."""
    return get_argument(op, "alpha") not in (None, 1) or get_argument(op, "rounding_mode") is not None


def _get_only_reader(op: OpFacts, facts: GraphFacts) -> OpFacts | None:
    readers = facts.get_users(op.outputs[0])
    return readers[0] if len(readers) == 1 and op.outputs[0] not in facts.outputs else None


def _make_composite(ops: Sequence[OpFacts], value: str, following: Following) -> Piece:
    return Piece(tuple(op.node for op in ops), ops[-1].outputs[0], (value,), Elementwise(value, following))
