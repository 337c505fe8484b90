"""Traces drawn by hand: operators as time ranges in microseconds, kernels with the moment of their launch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frx_graph.evidence.dtype import DType
from frx_graph.evidence.trace.events import (
    ActivityKind,
    DeviceActivity,
    HostThread,
    Operand,
    Operator,
    PythonFrame,
    RuntimeCall,
)
from frx_graph.evidence.trace.torch_trace import TorchTrace

MAIN = HostThread("1", "1")


def tensor(*shape: int, dtype: DType = DType.FLOAT32, strides: tuple[int, ...] | None = None) -> Operand:
    return Operand(shape, dtype, strides)


class TraceSketch:
    """Collects events; `build` makes the trace."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.calls: list[RuntimeCall] = []
        self.activities: list[DeviceActivity] = []
        self.frames: list[PythonFrame] = []
        self.device = "Tesla V100-SXM2-32GB"

    def op(
        self, name: str, start: int, end: int, *operands: Operand | None, thread: HostThread = MAIN, **fields: Any
    ) -> None:
        self.operators.append(
            Operator(
                name=name,
                start_ns=1000 * start,
                duration_ns=1000 * (end - start),
                thread=thread,
                operands=operands or None,
                **fields,
            )
        )

    def step(self, number: int, start: int, end: int) -> None:
        self.op(f"ProfilerStep#{number}", start, end, annotation=True)

    def kernel(
        self,
        name: str,
        launched: int,
        start: int,
        duration: int,
        kind: ActivityKind = ActivityKind.KERNEL,
        **fields: Any,
    ) -> None:
        correlation = len(self.calls) + 1
        self.calls.append(RuntimeCall("cudaLaunchKernel", 1000 * launched, 500, MAIN, correlation))
        self.activities.append(
            DeviceActivity(name, 1000 * start, 1000 * duration, kind, device=0, correlation=correlation, **fields)
        )

    def frame(self, name: str, start: int, end: int, called_from: str = "") -> None:
        self.frames.append(PythonFrame(name, 1000 * start, 1000 * (end - start), MAIN, called_from))

    def build(self) -> TorchTrace:
        return TorchTrace(
            path=Path("profile.json"),
            operators=tuple(self.operators),
            calls=tuple(self.calls),
            activities=tuple(self.activities),
            frames=tuple(self.frames),
            device_names={0: self.device},
        )


@pytest.fixture
def sketch() -> TraceSketch:
    return TraceSketch()


@pytest.fixture
def make_tensor() -> Callable[..., Operand]:
    return tensor
