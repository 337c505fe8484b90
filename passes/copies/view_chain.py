"""Trace views: the base of a value, the views between, and the origin of the strides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import Argument, GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.facts.layout import Layout

REORDERING_VIEWS = frozenset(
    f"aten.{name}"
    for name in ("permute", "transpose", "t", "movedim", "swapaxes", "swapdims", "adjoint", "mT", "numpy_T")
)
"""Views that change the order of dimensions and nothing else."""

STORAGE_READERS = frozenset(
    {
        "aten.as_strided",
        "aten.as_strided_",
        "aten.as_strided_copy",
        "aten.as_strided_scatter",
        "aten._reshape_alias",
        "aten._reshape_alias_copy",
        "aten.set_",
    }
)
"""Operators that address an operand's memory directly: on another layout they read other elements. Every other view
means the same elements on every layout that it accepts."""

_CONTIGUOUS_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
_SAME_STRIDES_OUT = 16
"""Most pointwise operators that `find_stride_origin` looks through; deeper origins do not help to find the line."""


@dataclass(frozen=True, slots=True)
class ViewChain:
    """`value` as `views`, in execution order, of a `base` that is not a view and may be the value itself."""

    base: str
    views: tuple[OpFacts, ...]
    value: str


def is_view(op: OpFacts) -> bool:
    """Return True if the result shares the first operand's memory; `_unsafe_view` does though its schema denies it."""
    return (op.view or op.operator == "aten._unsafe_view") and len(op.inputs) > 0


def trace_views(facts: GraphFacts, value: str) -> ViewChain:
    """Return the views between `value` and its memory."""
    views: list[OpFacts] = []
    base = value
    while (producer := facts.get_producer(base)) is not None and is_view(producer):
        views.append(producer)
        base = producer.inputs[0]
    return ViewChain(base, tuple(reversed(views)), value)


def find_readers(facts: GraphFacts, value: str) -> Iterator[OpFacts]:
    """Yield the operators that read `value`, through its views, nearest first; an operator may come twice."""
    pending = [value]
    while pending:
        for user in facts.get_users(pending.pop(0)):
            if is_view(user):
                pending.extend(user.outputs)
            else:
                yield user


def compute_value_key(facts: GraphFacts, value: str) -> tuple[object, ...]:
    """Return a key that is equal for the same elements of the same tensor in the same shape and strides, as far as the
    arguments of views tell. Views that change nothing do not count."""
    steps: list[object] = []
    while (producer := facts.get_producer(value)) is not None and is_view(producer):
        if not _is_identity_view(facts, producer):
            arguments = (str(producer.args[1:]), str(sorted(producer.kwargs.items())))
            steps.append((producer.target, arguments, producer.outputs.index(value)))
        value = producer.inputs[0]
    return (value, *reversed(steps))


def _is_identity_view(facts: GraphFacts, view: OpFacts) -> bool:
    if len(view.outputs) != 1 or view.operator == "aten.as_strided":
        return False
    before, after = facts.values[view.inputs[0]], facts.values[view.outputs[0]]
    return before.shape == after.shape and before.strides == after.strides


@dataclass(frozen=True, slots=True)
class StrideOrigin:
    """Origin of strides that are not plain: the operator `op`, or else the caller, who passed the input `value`."""

    op: OpFacts | None
    value: str


def find_stride_origin(facts: GraphFacts, value: str) -> StrideOrigin | None:
    """Return the operator after which `value` was no longer contiguous; None if it is contiguous.

    Walks back through views and through pointwise operators, which store their result in the order of their operand.
    """
    for _ in range(_SAME_STRIDES_OUT):
        if facts.values[value].layout is Layout.PLAIN:
            return None
        chain = trace_views(facts, value)
        for view in reversed(chain.views):
            if facts.values[view.inputs[0]].layout is Layout.PLAIN:
                return StrideOrigin(view, view.inputs[0])
        producer = facts.get_producer(chain.base)
        if producer is None:
            return StrideOrigin(None, chain.base)
        followed = _find_followed_operand(facts, producer, facts.values[chain.base]) if producer.pointwise else None
        if followed is None:
            return StrideOrigin(producer, chain.base)
        value = followed
    return StrideOrigin(facts.get_producer(value), value)


def _find_followed_operand(facts: GraphFacts, op: OpFacts, result: ValueFacts) -> str | None:
    """Return the operand whose dimension order a pointwise result has taken over."""
    for operand in facts.get_input_values(op):
        if operand.shape == result.shape and operand.layout is not Layout.PLAIN and operand.order == result.order:
            return operand.name
    return None


def format_call(op: OpFacts) -> str:
    """Format a call as users write it: `permute(0, 2, 3, 1)`, `transpose(1, 2)`; for other operators the name."""
    name = op.operator.removeprefix("aten.").removeprefix("_unsafe_")
    if not is_view(op):
        return name
    args: tuple[Argument, ...] = tuple(arg for arg in op.args if not isinstance(arg, ValueRef))
    if len(args) == 1 and isinstance(args[0], tuple):
        args = args[0]
    shown = ", ".join(str(arg) for arg in args if not isinstance(arg, (ValueRef, tuple)))
    return f"{name}({shown})"


def name_written_call(op: OpFacts) -> str:
    """Return the operator's name as a program calls it: an explicit copy with a memory format is `contiguous`."""
    if op.operator == "aten.clone" and op.kwargs.get("memory_format") in _CONTIGUOUS_FORMATS:
        return "contiguous"
    return op.operator.removeprefix("aten.")


def describe_origin(facts: GraphFacts, origin: StrideOrigin) -> str:
    """Describe the origin of strides, as half a sentence."""
    if origin.op is None:
        value = facts.values[origin.value]
        return f"it comes into the graph that way as {value.path or value.name}"
    phase = "the backward of " if origin.op.phase is Phase.BACKWARD else ""
    return f"made so by `{format_call(origin.op)}` in {phase}{format_location(origin.op.site)}"


def format_location(site: CallSite) -> str:
    """Format a site as `file.py:12`, or as its module if the line is unknown."""
    if site.line:
        return f"{Path(site.file).name}:{site.line}"
    return f"`{site.module_path}`" if site.module_path else "code that torch runs for it"
