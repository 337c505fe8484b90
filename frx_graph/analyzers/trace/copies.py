"""Find the layout copies in a trace: conversion kernels of libraries, and ATen's copies.

Each belongs to one rule. Ambiguous ones are left out: a copy that changes dtype or device is not a layout copy, and a
bare `aten::copy_` fills a buffer at the program's request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from frx_graph.analyzers.trace.convolutions import find_converted_tensors
from frx_graph.analyzers.trace.kernel_names import CONVERSIONS, classify_kernel, is_compiled_copy
from frx_graph.analyzers.trace.operators import COPY, RESHAPES, Blame, blame_copies, get_phase
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.trace.events import ActivityKind, Operand
from frx_graph.evidence.trace.tree import NONE, TraceTree
from frx_graph.records import CopyKind, OperandRole


@dataclass(frozen=True, slots=True)
class TraceCopy:
    """One layout copy. Operators are indices of the tree; `activities` are its kernels, empty on the CPU.

    `operator` is blamed for the copy, `maker` carried it out. `operand` is the tensor before the copy, if the trace has
    it; `target` has the strides afterwards. `role` is None if unknown.
    """

    rule: str
    kind: CopyKind
    operator: int
    maker: int
    activities: tuple[int, ...]
    role: OperandRole | None
    operand: Operand | None
    target: tuple[int, ...] | None
    phase: Phase
    start_ns: int

    @property
    def bytes(self) -> int | None:
        """Return the traffic, with every element read once and written once. None if shape or dtype are unknown."""
        size = self.operand.bytes if self.operand is not None else None
        return None if size is None else 2 * size


def find_copies(tree: TraceTree) -> tuple[TraceCopy, ...]:
    """Return all layout copies, conversions first; start times are the host's."""
    culprits = blame_copies(tree)
    return (*_find_conversions(tree, culprits), *_find_compiled_copies(tree), *_find_aten_copies(tree, culprits))


def _find_conversions(tree: TraceTree, culprits: Blame) -> Iterator[TraceCopy]:
    """Yield conversion kernels: FRX007 for a weight, else FRX004, since channels-last would avoid it."""
    by_launcher: dict[int, list[int]] = defaultdict(list)
    for index, activity in enumerate(tree.activities):
        if activity.kind is ActivityKind.KERNEL and classify_kernel(activity.name) in CONVERSIONS:
            by_launcher[tree.launcher[index]].append(index)
    for launcher, indices in by_launcher.items():
        indices.sort(key=lambda index: tree.launch_ns[index])
        culprit = launcher if launcher == NONE or culprits.hot[launcher] == NONE else culprits.hot[launcher]
        tensors = find_converted_tensors(tree, launcher, [tree.activities[index] for index in indices])
        for index, tensor in zip(indices, tensors, strict=True):
            yield TraceCopy(
                rule="FRX007" if tensor.role is OperandRole.WEIGHT else "FRX004",
                kind=CopyKind.REORDER,
                operator=culprit,
                maker=launcher,
                activities=(index,),
                role=tensor.role,
                operand=tensor.operand,
                target=None,
                phase=get_phase(tree, launcher),
                start_ns=tree.launch_ns[index],
            )


def _find_compiled_copies(tree: TraceTree) -> Iterator[TraceCopy]:
    """Yield Inductor's kernels that only copy: the program's own copies that no fusion removed."""
    for index, activity in enumerate(tree.activities):
        if not is_compiled_copy(activity.name):
            continue
        launcher = tree.launcher[index]
        operands = tree.operators[launcher].operands or () if launcher != NONE else ()
        tensors = [operand for operand in operands if operand is not None and operand.shape]
        known = len(tensors) == 2 and tensors[0].bytes == tensors[1].bytes
        yield TraceCopy(
            rule="FRX002",
            kind=CopyKind.EXPLICIT,
            operator=launcher,
            maker=launcher,
            activities=(index,),
            role=OperandRole.INPUT,
            operand=tensors[0] if known else None,
            target=tensors[1].strides if known else None,
            phase=get_phase(tree, launcher),
            start_ns=tree.launch_ns[index],
        )


def _find_aten_copies(tree: TraceTree, culprits: Blame) -> Iterator[TraceCopy]:
    """Yield copies of `contiguous`, `clone`, `reshape` or `to`: inside a hot operator FRX001, else FRX002."""
    for index, operator in enumerate(tree.operators):
        asker, hot = culprits.asker[index], culprits.hot[index]
        if operator.name != COPY or asker == NONE or (hot == NONE and culprits.other[asker]):
            continue
        asked = tree.operators[asker].name
        # A source that is broadcast has the target's shape, with unknown strides.
        operands = operator.operands or ()
        target, source = operands[:2] if len(operands) > 1 else (None, None)
        if target is not None and source is not None and source.shape != target.shape:
            source = replace(source, shape=target.shape, strides=None)
        if target is not None and source is not None:
            keeps = target.dtype == source.dtype and bool(target.shape)
        else:
            # Only `to` may change the dtype, and without recorded types that is unknown.
            keeps = asked not in ("aten::to", "aten::_to_copy")
        if not keeps or any(tree.activities[activity].leaves_device for activity in tree.launched[index]):
            continue
        requested = CopyKind.RESHAPE if asked in RESHAPES else CopyKind.EXPLICIT
        yield TraceCopy(
            rule="FRX002" if hot == NONE else "FRX001",
            kind=requested if hot == NONE else CopyKind.OPERATOR,
            operator=asker if hot == NONE else hot,
            maker=asker,
            activities=tree.launched[index],
            role=OperandRole.INPUT,
            operand=source,
            target=target.strides if target is not None else None,
            phase=get_phase(tree, index),
            start_ns=operator.start_ns,
        )
