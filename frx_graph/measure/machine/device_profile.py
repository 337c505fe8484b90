"""What a device can do, as measured on it: memory bandwidth and peak arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DeviceProfile:
    """One device. Bandwidth counts bytes read plus bytes written; `peak_flops` is keyed by dtype.

    `preferred_alignment_bytes` is what the innermost dimension of a matmul or convolution operand should be a multiple
    of: the tensor-core tile on CUDA, the vector register on a CPU.
    """

    device: str
    name: str
    bandwidth_bytes_per_s: float
    peak_flops: Mapping[torch.dtype, float]
    preferred_alignment_bytes: int

    def ridge_point(self, dtype: torch.dtype) -> float | None:
        """FLOPs per byte above which an operator of `dtype` is compute-bound; None where the peak is unknown."""
        peak = self.peak_flops.get(dtype)
        return None if peak is None else peak / self.bandwidth_bytes_per_s
