"""Profiler traces as torch writes them, made by hand: operators, the kernels that they launch, steps, Python frames."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MAIN = {"pid": 1, "tid": 1}
_DEVICE = {"pid": 0, "tid": 7}
Tensor = tuple[Sequence[int], Sequence[int] | None]
"""Shape, and strides where they were recorded."""


@dataclass
class RunTrace:
    """Collects events, in microseconds; `write` makes the file."""

    events: list[dict[str, Any]] = field(default_factory=list)
    device: str = "Tesla V100-SXM2-32GB"
    dtype: str = "float"

    def event(self, category: str, name: str, start: float, end: float, where: dict[str, int], **args: Any) -> None:
        """One event that lasts from `start` to `end`."""
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start, "args": args, **where}
        )

    def step(self, number: int, start: float, end: float) -> None:
        """A step that the program has marked."""
        self.event("user_annotation", f"ProfilerStep#{number}", start, end, _MAIN)

    def op(self, name: str, start: float, end: float, *tensors: Tensor, **args: Any) -> None:
        """An operator; without tensors no shapes are recorded."""
        if tensors:
            args["Input Dims"] = [list(shape) for shape, _ in tensors]
            args["Input type"] = [self.dtype for _ in tensors]
            if all(strides is not None for _, strides in tensors):
                args["Input Strides"] = [list(strides or ()) for _, strides in tensors]
        self.event("cpu_op", name, start, end, _MAIN, **args)

    def kernel(self, name: str, launched: float, start: float, end: float) -> int:
        """A kernel, launched on the host at `launched`; its correlation id."""
        number = len(self.events) + 1
        self.event("cuda_runtime", "cudaLaunchKernel", launched, launched + 0.5, _MAIN, correlation=number)
        self.event("kernel", name, start, end, _DEVICE, device=0, stream=7, correlation=number)
        return number

    def frame(self, name: str, start: float, end: float, called_from: str = "") -> None:
        """A Python function on the stack: `net.py(12): forward`."""
        self.event("python_function", name, start, end, _MAIN, **({"CallFrom": called_from} if called_from else {}))

    def write(self, path: Path) -> Path:
        """The file, as JSON."""
        document = {"deviceProperties": [{"id": 0, "name": self.device}], "traceEvents": self.events}
        path.write_text(json.dumps(document))
        return path
