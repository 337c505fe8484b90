"""What a kernel computes, as far as it was counted: float32 arithmetic, and that of tensor cores by their operands.

Nsight Compute counts instructions of threads for the one, and operations for the other, of which a fused multiply-add
is two. Where tensor cores work whose operations were not counted, float32 instructions are not what the kernel
computes, and nothing follows from them for the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from frx_graph.analyzers.kernels.labels import multiplies_matrices
from frx_graph.rules.gpu_profile import FLOAT32

_FLOAT32 = ("fp32_add", "fp32_mul", "fp32_fma")
_TENSOR = MappingProxyType(
    {"fp16": "tensor_fp16_operations", "bf16": "tensor_bf16_operations", "tf32": "tensor_tf32_operations"}
)
"""By the format of the operands; all of them accumulate in float32, as the peaks of data sheets do."""
_BUSY = ("tensor_pipe", "tensor_instructions")


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Operations of all launches by format, `float32` and those of tensor cores. It is `complete` unless the kernel
    computes something else, too, or may."""

    operations: Mapping[str, float]
    complete: bool

    @property
    def whole(self) -> float | None:
        """All operations; None where some were not counted."""
        return sum(self.operations.values()) if self.complete else None


def arithmetic(kernel: str, values: Mapping[str, float]) -> Arithmetic | None:
    """What was counted of the kernel of that name; None where nothing was."""
    operations = {of: values[name] for of, name in _TENSOR.items() if values.get(name, 0.0) > 0}
    complete = bool(operations) or not computes_elsewhere(kernel, values)
    if all(name in values for name in _FLOAT32):
        add, mul, fma = (values[name] for name in _FLOAT32)
        operations[FLOAT32] = add + mul + 2 * fma
    return Arithmetic(operations, complete) if operations else None


def computes_elsewhere(kernel: str, values: Mapping[str, float]) -> bool:
    """Whether float32 instructions are not what the kernel computes: tensor cores work, or may, where nobody has looked
    at them and the name says that matrices are multiplied; or doubles are multiplied."""
    if values.get("fp64_instructions", 0.0) > 0:
        return True
    known = [values[name] for name in _BUSY if name in values]
    return any(value > 0 for value in known) if known else multiplies_matrices(kernel, values)
