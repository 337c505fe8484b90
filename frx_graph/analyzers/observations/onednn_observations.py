"""Read layout work from oneDNN's verbose log: reorders around convolutions, and convolutions without any."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from frx_graph.analyzers.observations.observation import (
    CONVERSIONS,
    QuietCall,
    RunFile,
    SeenCall,
    Setting,
    Sighting,
    Work,
)
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.dtype import DType
from frx_graph.evidence.onednn import MemoryDescriptor, Primitive
from frx_graph.evidence.trace.events import Operand
from frx_graph.facts.layout import strides_for_order
from frx_graph.measure.operators.onednn_reorders import LayoutReorder, layout_reorders
from frx_graph.records import CopyKind, OperandRole

_DTYPES = {"f32": DType.FLOAT32, "f64": DType.FLOAT64, "f16": DType.FLOAT16, "bf16": DType.BFLOAT16}
_BACKWARD = frozenset({"backward_data", "backward_weights"})

_Alike: TypeAlias = tuple[SeenCall, Phase | None, tuple[int, ...], str, str, str]


def onednn_sightings(primitives: Sequence[Primitive], source: str) -> RunFile:
    """Observe all reorders; `primitives` are all of the log `source`, in order."""
    alike: dict[_Alike, list[LayoutReorder]] = defaultdict(list)
    reorders = layout_reorders(primitives)
    for reorder in reorders:
        call, phase = _call(reorder.served)
        shape = _whole(reorder.shape, reorder.argument, reorder.served)
        alike[call, phase, shape, reorder.source, reorder.target, reorder.role].append(reorder)
    served = {reorder.served.line for reorder in reorders if reorder.served is not None}
    return RunFile(
        source=source,
        setting=Setting("cpu", None),
        observations=tuple(_sighting(key, found, source) for key, found in alike.items()),
        quiet=_quiet_calls(primitives, served),
        shows=frozenset({CopyKind.REORDER}),
    )


def _sighting(key: _Alike, reorders: Sequence[LayoutReorder], source: str) -> Sighting:
    call, phase, shape, before, after, role = key
    first = reorders[0].reorder
    times = [reorder.reorder.seconds for reorder in reorders]
    known = [time for time in times if time is not None]
    dtype = _dtype(first.argument("src"))
    return Sighting(
        work=Work.CONVERSION,
        kernels=tuple(dict.fromkeys(f"reorder {reorder.reorder.implementation}" for reorder in reorders)),
        where=f"line {first.line}",
        count=len(reorders),
        calls=(call,),
        copied=Operand(shape, dtype),
        kinds=CONVERSIONS,
        roles=frozenset({OperandRole(role)}),
        phase=phase,
        seconds=sum(known) if len(known) == len(times) else None,
        bytes=2 * reorders[0].itemsize * math.prod(shape) * len(reorders),
        measurements=tuple(first.measurements(source)),
        detail=f"{before} to {after}",
    )


def _call(primitive: Primitive | None) -> tuple[SeenCall, Phase | None]:
    """Return the convolution of a primitive and its pass; other primitives are only named, since their operands
    differ."""
    if primitive is None or primitive.kind != "convolution":
        return SeenCall(f"onednn::{'reorder' if primitive is None else primitive.kind}"), None
    image, weight = _operand(primitive, "src"), _operand(primitive, "wei")
    if image is None or weight is None:
        return SeenCall("aten::convolution"), None
    if primitive.prop_kind not in _BACKWARD:
        # Whether there is a bias the log tells, too, but not always in the shape of the operator's.
        return SeenCall("aten::convolution", (image, weight), complete=False), Phase.FORWARD
    gradient = _operand(primitive, "dst")
    operands = None if gradient is None else (gradient, image, weight)
    return SeenCall("aten::convolution_backward", operands, complete=False), Phase.BACKWARD


def _operand(primitive: Primitive, argument: str) -> Operand | None:
    descriptor = primitive.argument(argument)
    if descriptor is None or descriptor.dims is None:
        return None
    shape = _whole(descriptor.dims, argument, primitive)
    return Operand(shape, _dtype(descriptor))


def _whole(shape: tuple[int, ...], argument: str, primitive: Primitive | None) -> tuple[int, ...]:
    """Return the shape as torch has it: oneDNN makes groups a dimension of their own."""
    image = None if primitive is None else primitive.argument("src")
    if not argument.startswith("wei") or image is None or image.dims is None or len(shape) != len(image.dims) + 1:
        return shape
    return (shape[0] * shape[1], *shape[2:])


def _dtype(descriptor: MemoryDescriptor | None) -> DType | None:
    return None if descriptor is None else _DTYPES.get(descriptor.dtype)


def _quiet_calls(primitives: Sequence[Primitive], served: set[int]) -> tuple[QuietCall, ...]:
    """Return convolutions without a reorder on plain or channels-last operands; blocked formats were converted
    before."""
    counts: Counter[tuple[SeenCall, Phase]] = Counter()
    for primitive in primitives:
        call, phase = _call(primitive)
        if call.operands is None or phase is None or primitive.line in served:
            continue
        # The operands of a backward and of its primitive differ in order.
        names = ("dst", "src", "wei") if phase is Phase.BACKWARD else ("src", "wei")
        strides = [
            _strides(primitive.argument(name), operand) for name, operand in zip(names, call.operands, strict=True)
        ]
        if strides[-2] is None:
            continue
        operands = tuple(replace(one, strides=steps) for one, steps in zip(call.operands, strides, strict=True))
        counts[SeenCall(call.operator, operands, complete=False), phase] += 1
    return tuple(QuietCall(call, phase, count) for (call, phase), count in counts.items())


def _strides(descriptor: MemoryDescriptor | None, operand: Operand) -> tuple[int, ...] | None:
    """Return the strides of a tag such as `acdb`; None for a blocked format, or with groups."""
    tag = "" if descriptor is None or descriptor.strides else descriptor.tag
    letters = "abcdefghijkl"[: len(operand.shape)]
    if sorted(tag) != list(letters):
        return None
    return strides_for_order(operand.shape, [letters.index(letter) for letter in tag])
