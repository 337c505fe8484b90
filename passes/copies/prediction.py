"""Predict the layout copies of one step: those that the program asks for, and those inside its operators.

Explicit copies are operators of the graph. Copies inside an operator are looked up. Measurements of this very call come
first: same shapes, strides and dtypes, run separately on this device. Otherwise the operator layout contract of this
torch version decides. An operator unknown to both counts as making no copy, and is listed by `find_unknown_operators`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import StridePattern, is_reordering_copy, make_contiguous_strides
from frx_graph.facts.operator_families import EXPLICIT_COPIES, FOLDED_PRODUCTS, WRITING_COPIES
from frx_graph.facts.operator_overload import get_argument
from frx_graph.facts.operator_signature import OperatorSignature, build_signature
from frx_graph.measure.operators.operator_contract import OperatorContract
from frx_graph.measure.operators.operator_measurement import Mechanism, OperatorMeasurement, SeenCopy
from frx_graph.measure.operators.operator_tagger import ACCUMULATION
from frx_graph.passes.copies.inductor_copies import (
    IMAGE_RANK,
    build_predicted_copy,
    convert_signature,
    find_forced_phases,
    keep_inductor_copies,
    runs_channels_last,
)
from frx_graph.records import Copy, CopyKind, OperandRole

_WRITES_ITS_OUTPUT = WRITING_COPIES | {"aten.copy", "aten.fill_", "aten.zero_", "aten.empty", "aten.new_empty"}
"""Operators whose purpose is to copy, or that do not read: they have no hidden copies."""


def may_copy_inside(op: OpFacts) -> bool:
    """Return True for operators that a measurement or the contract should be asked about.

    Pointwise operators run on any strides through TensorIterator, and views do not touch memory.
    """
    return bool(op.inputs) and not (
        op.view or op.pointwise or op.opaque or op.operator in EXPLICIT_COPIES or op.operator in _WRITES_ITS_OUTPUT
    )


def list_signatures_to_measure(facts: GraphFacts, inner: str = "eager") -> Mapping[str, OperatorSignature]:
    """Return the calls whose inner copies must be known, by node, with the strides that they have under `inner`."""
    forced = find_forced_phases(facts, inner)
    signatures = {}
    for op in filter(may_copy_inside, facts.ops):
        signature = build_signature(op, facts)
        converted = runs_channels_last(op, facts, forced)
        signatures[op.node] = convert_signature(signature) if converted else signature
    return signatures


def predict_copies(
    facts: GraphFacts,
    measured: Mapping[str, OperatorMeasurement],
    contract: OperatorContract | None = None,
    inner: str = "eager",
) -> tuple[Copy, ...]:
    """Return all layout copies of one step in execution order; `measured` is keyed by node name. A graph that a step
    runs several times counts as often."""
    copies: list[Copy] = []
    forced = find_forced_phases(facts, inner)
    for op in facts.ops:
        if op.operator in EXPLICIT_COPIES:
            copies.extend(_predict_explicit_copy(op, facts))
        elif op.operator in WRITING_COPIES:
            copies.extend(_predict_written_copy(op, facts))
        elif may_copy_inside(op):
            measurement = measured.get(op.node)
            if measurement is not None:
                copies.extend(_convert_measured_copies(op, facts, measurement))
            elif contract is not None:
                copies.extend(_look_up_contract_copies(op, facts, contract, runs_channels_last(op, facts, forced)))
    if inner == "inductor":
        copies = keep_inductor_copies(copies, facts)
    else:
        copies.extend(_predict_accumulation_copies(facts))
    if facts.calls > 1:
        copies = [replace(c, count=c.count * facts.calls, bytes=c.bytes * facts.calls) for c in copies]
    return tuple(copies)


def find_unknown_operators(
    facts: GraphFacts,
    measured: Mapping[str, OperatorMeasurement],
    contract: OperatorContract | None,
    inner: str = "eager",
) -> tuple[OpFacts, ...]:
    """Return operators with an operand in unusual strides that neither a measurement nor the contract covers."""
    forced = find_forced_phases(facts, inner)

    def is_unknown(op: OpFacts) -> bool:
        patterns = _classify_operands(op, facts, runs_channels_last(op, facts, forced))
        form = find_call_form(op, facts)
        return any(
            contract is None
            or contract.get_entry(op.target, position, pattern, value.dtype, rank=len(value.shape), case=form) is None
            for position, (value, pattern) in enumerate(zip(facts.get_input_values(op), patterns, strict=True))
            if pattern is not StridePattern.CONTIGUOUS
            or (
                contract is not None
                and contract.documented
                and contract.lists(op.target, position, pattern, value.dtype, rank=len(value.shape))
            )
        )

    return tuple(op for op in facts.ops if may_copy_inside(op) and op.node not in measured and is_unknown(op))


def _classify_operands(op: OpFacts, facts: GraphFacts, channels_last: bool) -> list[StridePattern]:
    """Return the stride classes of the operands, as the compiler passes them."""
    return [
        StridePattern.CHANNELS_LAST if channels_last and len(value.shape) == IMAGE_RANK else value.pattern
        for value in facts.get_input_values(op)
    ]


def _predict_explicit_copy(op: OpFacts, facts: GraphFacts) -> tuple[Copy, ...]:
    """Return the copy of an operator that copies, unless it changes dtype or device, which is a conversion."""
    if not op.inputs or not op.outputs:
        return ()
    source, result = facts.values[op.inputs[0]], facts.values[op.outputs[0]]
    if source.dtype is not result.dtype or source.device != result.device or result.numel == 0:
        return ()
    consumer = _find_sole_unsafe_view(result, facts, op)
    product = _find_sole_product(consumer, facts) if consumer is not None else None
    shape = "x".join(map(str, source.shape))
    if product is not None:
        kind, operator = CopyKind.OPERATOR, "aten.matmul"
        cause = f"matmul folds {shape} to two or three dimensions, which its strides do not allow as a view"
    elif consumer is not None:
        kind, operator = CopyKind.RESHAPE, "aten.reshape"
        cause = f"reshape of {shape} with strides {source.strides} cannot be a view"
    else:
        kind, operator = CopyKind.EXPLICIT, op.operator
        wanted = op.kwargs.get("memory_format", torch.preserve_format)
        cause = f"the program asks for a copy ({str(wanted).removeprefix('torch.')}) of strides {source.strides}"
    role = OperandRole.WEIGHT if kind is CopyKind.OPERATOR and _is_parameter(source, facts) else OperandRole.INPUT
    return (build_predicted_copy(op, kind, role, source.name, 2 * result.bytes, cause, operator=operator),)


def _predict_written_copy(op: OpFacts, facts: GraphFacts) -> tuple[Copy, ...]:
    """Return the copy into existing memory if it changes only the dimension order; a broadcast fills its target."""
    if len(op.inputs) < 2:
        return ()
    target, source = facts.get_input_values(op)[:2]
    if (source.dtype, source.device, source.shape) != (target.dtype, target.device, target.shape):
        return ()
    if not is_reordering_copy(target.shape, source.strides, target.strides):
        return ()
    cause = f"strides {source.strides} are written into strides {target.strides}"
    return (build_predicted_copy(op, CopyKind.EXPLICIT, OperandRole.INPUT, source.name, 2 * target.bytes, cause),)


def _find_sole_unsafe_view(value: ValueFacts, facts: GraphFacts, copy: OpFacts) -> OpFacts | None:
    """Return the `_unsafe_view` that a copying reshape puts behind its clone; nothing else emits that pair."""
    users = _find_users_in_phase(value, facts, copy)
    return users[0] if len(users) == 1 and users[0].operator == "aten._unsafe_view" else None


def _find_users_in_phase(value: ValueFacts, facts: GraphFacts, op: OpFacts) -> list[OpFacts]:
    """Return readers of the same phase: what autograd saved is read again by the backward."""
    return [user for user in facts.get_users(value.name) if user.phase is op.phase]


def _find_sole_product(view: OpFacts, facts: GraphFacts) -> OpFacts | None:
    """Return the product that matmul runs on what it folded. A reshape that the user wrote has its own site, or feeds
    its product through another module."""
    users = _find_users_in_phase(facts.values[view.outputs[0]], facts, view)
    alone = len(users) == 1 and users[0].operator in FOLDED_PRODUCTS and users[0].site == view.site
    return users[0] if alone else None


def _predict_accumulation_copies(facts: GraphFacts) -> Iterator[Copy]:
    """Yield copies of gradients that arrive in other strides than autograd stores them in.

    That is those of the parameter (`accumulate_grad.h`, `obeys_layout_contract`), or contiguous for a parameter with
    gaps. Inductor stores gradients in those strides directly.
    """
    for parameter_name, gradient_name in facts.gradients:
        parameter, gradient = facts.values[parameter_name], facts.values[gradient_name]
        wanted = parameter.strides if parameter.dense else make_contiguous_strides(parameter.shape)
        obeys = all(n == 1 or a == b for n, a, b in zip(gradient.shape, gradient.strides, wanted, strict=True))
        users = facts.get_users(parameter_name)
        if obeys or gradient.numel == 0 or gradient.producer is None or not users:
            continue
        op = replace(facts.op_by_node[gradient.producer], site=users[0].site, phase=Phase.BACKWARD)
        cause = f"the gradient has strides {gradient.strides}, its parameter {parameter.strides}"
        kind, role, moved = CopyKind.OPERATOR, OperandRole.WEIGHT, 2 * gradient.bytes
        yield build_predicted_copy(op, kind, role, gradient_name, moved, cause, operator=ACCUMULATION)


def find_call_form(op: OpFacts, facts: GraphFacts) -> str | None:
    """Return the form of a convolution, as contracts name their cases; None for other operators."""
    if op.operator not in ("aten.convolution", "aten.convolution_backward"):
        return None
    backward = op.operator == "aten.convolution_backward"
    image, weight = (facts.values[name] for name in op.inputs[backward : backward + 2])
    dimensions = f"{len(image.shape) - 2}-D"
    groups = get_argument(op, "groups")
    if get_argument(op, "transposed"):
        return f"{dimensions}, transposed"
    if dimensions == "1-D":
        return dimensions
    if groups != 1:
        return f"{dimensions}, depthwise" if groups == image.shape[1] else f"{dimensions}, grouped"
    if set(weight.shape[2:]) == {1} and not backward:
        return f"{dimensions}, 1x1"
    if dimensions != "2-D":
        return dimensions
    # Tensor cores take float32, as TF32, in groups of four channels.
    few = not backward and image.dtype is torch.float32 and image.shape[1] < 4
    return f"{dimensions}, 3x3, few channels" if few else f"{dimensions}, 3x3"


def _convert_measured_copies(op: OpFacts, facts: GraphFacts, measurement: OperatorMeasurement) -> list[Copy]:
    groups: dict[tuple[CopyKind, OperandRole, str, str], list[SeenCopy]] = {}
    for seen in measurement.copies:
        kind = CopyKind.OPERATOR if seen.mechanism is Mechanism.ATEN else CopyKind.REORDER
        value = _find_copied_value(op, facts, seen)
        # A computed weight is an input like any other.
        own = OperandRole.WEIGHT if value is not None and _is_parameter(value, facts) else OperandRole.INPUT
        role = OperandRole.OUTPUT if seen.role == "output" else own
        cause = f"{op.operator.removeprefix('aten.')} converts {seen.source} to {seen.target}"
        groups.setdefault((kind, role, value.name if value else "", cause), []).append(seen)
    return [
        build_predicted_copy(op, kind, role, value_name, sum(seen.bytes for seen in group), cause, count=len(group))
        for (kind, role, value_name, cause), group in groups.items()
    ]


def _find_copied_value(op: OpFacts, facts: GraphFacts, seen: SeenCopy) -> ValueFacts | None:
    """Return the value of a seen copy: as the probe named it, else by number of elements, likely ones first."""
    operands = facts.get_input_values(op)
    if seen.operand is not None and seen.operand < len(operands):
        return operands[seen.operand]
    candidates = facts.get_output_values(op) if seen.role == "output" else operands
    if seen.role == "weight":
        candidates = (*(v for v in candidates if _is_parameter(v, facts)), *candidates[1:2], *candidates)
    return next((v for v in candidates if v.numel == math.prod(seen.shape)), candidates[0] if candidates else None)


def _is_parameter(value: ValueFacts, facts: GraphFacts) -> bool:
    return any(other.is_parameter for other in facts.values_by_storage.get(value.storage, ()))


def _look_up_contract_copies(
    op: OpFacts, facts: GraphFacts, contract: OperatorContract, channels_last: bool
) -> list[Copy]:
    copies: list[Copy] = []
    operands, form = facts.get_input_values(op), find_call_form(op, facts)
    patterns = _classify_operands(op, facts, channels_last)
    asked: list[tuple[int | None, ValueFacts, StridePattern, int]] = [
        (position, value, patterns[position], value.bytes) for position, value in enumerate(operands)
    ]
    results = facts.get_output_values(op)
    if results:
        # The contract covers all results together, by the strides of the first operand.
        # By documents, convolutions run in channels-last if the image or the weight is.
        last = contract.documented and form is not None and StridePattern.CHANNELS_LAST in patterns[:2]
        pattern = StridePattern.CHANNELS_LAST if last else patterns[0]
        asked.append((None, results[0], pattern, sum(value.bytes for value in results)))
    for position, value, pattern, size in asked:
        rank = len(operands[0].shape) if position is None else len(value.shape)
        entry = contract.get_entry(op.target, position, pattern, value.dtype, rank=rank, case=form)
        if entry is None or not entry.copied or size == 0:
            continue
        kind = CopyKind.OPERATOR if entry.mechanism is Mechanism.ATEN else CopyKind.REORDER
        role = OperandRole.WEIGHT if _is_parameter(value, facts) else OperandRole.INPUT
        role = OperandRole.OUTPUT if position is None else role
        cause = f"{op.operator.removeprefix('aten.')} copies a {pattern} operand or its result ({contract.name})"
        size_copied = round(2 * size * entry.bytes_ratio)
        copies.append(build_predicted_copy(op, kind, role, value.name, size_copied, cause, count=entry.count))
    return copies
