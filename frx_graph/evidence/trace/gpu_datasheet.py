"""Peaks of GPUs by name, from the makers' data sheets: for traces of devices that are not at hand to be measured.

Dense figures, without structured sparsity; `float32` without TF32, `tensor` for fp16 and bf16 with fp32 accumulation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuPeaks:
    """Bytes and floating-point operations per second that a GPU reaches at most."""

    name: str
    bandwidth_bytes_per_s: float
    float32_flops: float
    tensor_flops: float
    source: str


_PEAKS: tuple[tuple[re.Pattern[str], GpuPeaks], ...] = tuple(
    (re.compile(pattern), GpuPeaks(name, bandwidth * 1e9, float32 * 1e12, tensor * 1e12, source))
    for pattern, name, bandwidth, float32, tensor, source in (
        (r"V100.*(SXM|DGXS)", "V100 SXM2", 900, 15.7, 125, "NVIDIA V100 data sheet"),
        (r"V100.*PCIE", "V100 PCIe", 900, 14, 112, "NVIDIA V100 data sheet"),
        (r"A100 80GB PCIe", "A100 80GB PCIe", 1935, 19.5, 312, "NVIDIA A100 data sheet"),
        (r"A100.*80GB", "A100 80GB SXM", 2039, 19.5, 312, "NVIDIA A100 data sheet"),
        (r"A100", "A100 40GB", 1555, 19.5, 312, "NVIDIA A100 data sheet"),
        (r"H200", "H200", 4800, 67, 989, "NVIDIA H200 data sheet"),
        (r"H100.*PCIe", "H100 PCIe", 2000, 51, 756, "NVIDIA H100 data sheet"),
        (r"H100", "H100 SXM", 3350, 67, 989, "NVIDIA H100 data sheet"),
        (r"\bT4\b", "T4", 320, 8.1, 65, "NVIDIA T4 data sheet"),
        (r"\bL4\b", "L4", 300, 30.3, 121, "NVIDIA L4 data sheet"),
        (r"\bL40S\b", "L40S", 864, 91.6, 362, "NVIDIA L40S data sheet"),
        (r"\bMI300X\b", "MI300X", 5300, 163.4, 1307, "AMD Instinct MI300X data sheet"),
        (r"\bMI2[15]0", "MI250 (one die)", 1638, 22.6, 181, "AMD Instinct MI250 data sheet"),
    )
)


def peaks_of(device_name: str) -> GpuPeaks | None:
    """The peaks of a GPU, None for one that is not listed."""
    return next((peaks for pattern, peaks in _PEAKS if pattern.search(device_name)), None)
