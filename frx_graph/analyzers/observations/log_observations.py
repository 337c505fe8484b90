"""Read layout work from text that libraries write.

oneDNN's verbose log has reorders around convolutions, and convolutions without reorders. Inductor's generated code has
loops that only copy.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from frx_graph.analyzers.observations.observation import (
    CONVERSIONS,
    COPIES,
    Observation,
    ObservedCall,
    QuietCall,
    RunFile,
    RunSetting,
    Work,
)
from frx_graph.analyzers.trace.analysis import sum_known
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.dtype import DType
from frx_graph.evidence.inductor_code import GeneratedCode, GeneratedCopy
from frx_graph.evidence.onednn import MemoryDescriptor, Primitive
from frx_graph.evidence.trace.events import Operand
from frx_graph.facts.layout import make_ordered_strides
from frx_graph.measure.operators.onednn_reorders import LayoutReorder, find_layout_reorders
from frx_graph.records import CopyKind, OperandRole

_DTYPES = {"f32": DType.FLOAT32, "f64": DType.FLOAT64, "f16": DType.FLOAT16, "bf16": DType.BFLOAT16}
_BACKWARD = frozenset({"backward_data", "backward_weights"})

_Alike: TypeAlias = tuple[ObservedCall, Phase | None, tuple[int, ...], str, str, str]


def observe_onednn_log(primitives: Sequence[Primitive], source: str) -> RunFile:
    """Observe all reorders; `primitives` are all primitives of the log `source`, in order."""
    alike: dict[_Alike, list[LayoutReorder]] = defaultdict(list)
    reorders = find_layout_reorders(primitives)
    for reorder in reorders:
        call, phase = _identify_call(reorder.served)
        shape = _merge_groups(reorder.shape, reorder.argument, reorder.served)
        alike[call, phase, shape, reorder.source, reorder.target, reorder.role].append(reorder)
    served = {reorder.served.line for reorder in reorders if reorder.served is not None}
    return RunFile(
        source=source,
        setting=RunSetting("cpu", None),
        observations=tuple(_observe_reorders(key, found, source) for key, found in alike.items()),
        quiet=_find_quiet_calls(primitives, served),
        shows=frozenset({CopyKind.REORDER}),
    )


def _observe_reorders(key: _Alike, reorders: Sequence[LayoutReorder], source: str) -> Observation:
    call, phase, shape, before, after, role = key
    first = reorders[0].reorder
    return Observation(
        work=Work.CONVERSION,
        kernels=tuple(dict.fromkeys(f"reorder {reorder.reorder.implementation}" for reorder in reorders)),
        where=f"line {first.line}",
        count=len(reorders),
        calls=(call,),
        copied=Operand(shape, _convert_dtype(first.get_argument("src"))),
        kinds=CONVERSIONS,
        roles=frozenset({OperandRole(role)}),
        phase=phase,
        seconds=sum_known(one.reorder.seconds for one in reorders),
        bytes=2 * reorders[0].itemsize * math.prod(shape) * len(reorders),
        measurements=tuple(first.list_measurements(source)),
        detail=f"{before} to {after}",
    )


def _identify_call(primitive: Primitive | None) -> tuple[ObservedCall, Phase | None]:
    """Return a primitive's convolution and pass; others only give a name, since their operands differ."""
    if primitive is None or primitive.kind != "convolution":
        return ObservedCall(f"onednn::{'reorder' if primitive is None else primitive.kind}"), None
    image, weight = _make_operand(primitive, "src"), _make_operand(primitive, "wei")
    if image is None or weight is None:
        return ObservedCall("aten::convolution"), None
    if primitive.prop_kind not in _BACKWARD:
        # The log also shows if there is a bias, but not always in the operator's shape.
        return ObservedCall("aten::convolution", (image, weight), complete=False), Phase.FORWARD
    gradient = _make_operand(primitive, "dst")
    operands = None if gradient is None else (gradient, image, weight)
    return ObservedCall("aten::convolution_backward", operands, complete=False), Phase.BACKWARD


def _make_operand(primitive: Primitive, argument: str) -> Operand | None:
    descriptor = primitive.get_argument(argument)
    if descriptor is None or descriptor.dims is None:
        return None
    return Operand(_merge_groups(descriptor.dims, argument, primitive), _convert_dtype(descriptor))


def _merge_groups(shape: tuple[int, ...], argument: str, primitive: Primitive | None) -> tuple[int, ...]:
    """Return the shape as torch has it; oneDNN gives groups their own dimension."""
    image = None if primitive is None else primitive.get_argument("src")
    if not argument.startswith("wei") or image is None or image.dims is None or len(shape) != len(image.dims) + 1:
        return shape
    return (shape[0] * shape[1], *shape[2:])


def _convert_dtype(descriptor: MemoryDescriptor | None) -> DType | None:
    return None if descriptor is None else _DTYPES.get(descriptor.dtype)


def _find_quiet_calls(primitives: Sequence[Primitive], served: set[int]) -> tuple[QuietCall, ...]:
    """Return convolutions without a reorder on plain or channels-last operands; blocked ones were converted earlier."""
    counts: Counter[tuple[ObservedCall, Phase]] = Counter()
    for primitive in primitives:
        call, phase = _identify_call(primitive)
        if call.operands is None or phase is None or primitive.line in served:
            continue
        # The operands of a backward call and those of the primitive differ in order.
        names = ("dst", "src", "wei") if phase is Phase.BACKWARD else ("src", "wei")
        strides = [
            _parse_strides(primitive.get_argument(name), operand)
            for name, operand in zip(names, call.operands, strict=True)
        ]
        if strides[-2] is None:
            continue
        operands = tuple(replace(one, strides=steps) for one, steps in zip(call.operands, strides, strict=True))
        counts[ObservedCall(call.operator, operands, complete=False), phase] += 1
    return tuple(QuietCall(call, phase, count) for (call, phase), count in counts.items())


def _parse_strides(descriptor: MemoryDescriptor | None, operand: Operand) -> tuple[int, ...] | None:
    """Return the strides of a tag such as `acdb`; None for a blocked format, or with groups."""
    tag = "" if descriptor is None or descriptor.strides else descriptor.tag
    letters = "abcdefghijkl"[: len(operand.shape)]
    if sorted(tag) != list(letters):
        return None
    return make_ordered_strides(operand.shape, [letters.index(letter) for letter in tag])


def observe_generated_code(code: GeneratedCode, source: str) -> RunFile:
    """Observe all copies. Conversions inside libraries are not in the code, and fused copies do not count."""
    alike: dict[object, list[GeneratedCopy]] = defaultdict(list)
    for copy in code.copies:
        target = copy.target
        alike[target.shape, target.strides, target.dtype, target.device].append(copy)
    device = code.copies[0].target.device if code.copies else "cpu"
    observations = tuple(_observe_copies(copies, source) for copies in alike.values())
    return RunFile(source, RunSetting(device, compiled=True), observations)


def _observe_copies(copies: Sequence[GeneratedCopy], source: str) -> Observation:
    first = copies[0]
    target, size = first.target, first.target.bytes
    return Observation(
        work=Work.COPY,
        kernels=tuple(dict.fromkeys(copy.kernel for copy in copies)),
        where=f"line {first.line}",
        count=len(copies),
        calls=(ObservedCall("aten::clone"),),
        # Its strides are those after the copy; a clone has the shape of what it copies.
        copied=Operand(target.shape, target.dtype),
        kinds=COPIES,
        bytes=None if size is None else 2 * size * len(copies),
        measurements=tuple(fact for copy in copies for fact in copy.list_measurements(source)),
        detail=f"into strides {target.strides}",
    )
