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


_NVIDIA = r"(?:NVIDIA )?(?:Tesla )?"
_AMD = r"(?:AMD )?(?:Instinct )?"
_PEAKS: tuple[tuple[re.Pattern[str], GpuPeaks], ...] = tuple(
    (
        re.compile(maker + pattern, re.IGNORECASE),
        GpuPeaks(name, bandwidth * 1e9, float32 * 1e12, tensor * 1e12, source),
    )
    for maker, pattern, name, bandwidth, float32, tensor, source in (
        (_NVIDIA, r"V100-(SXM2|DGXS)-(16|32)GB", "V100 SXM2", 900, 15.7, 125, "NVIDIA V100 data sheet"),
        (_NVIDIA, r"V100-PCIE-(16|32)GB", "V100 PCIe", 900, 14, 112, "NVIDIA V100 data sheet"),
        (_NVIDIA, r"A100 80GB PCIe", "A100 80GB PCIe", 1935, 19.5, 312, "NVIDIA A100 data sheet"),
        (_NVIDIA, r"A100-SXM4-80GB", "A100 80GB SXM", 2039, 19.5, 312, "NVIDIA A100 data sheet"),
        (_NVIDIA, r"A100-(SXM4-40GB|PCIE-40GB|PG509-200)", "A100 40GB", 1555, 19.5, 312, "NVIDIA A100 data sheet"),
        (_NVIDIA, r"H200", "H200", 4800, 67, 989, "NVIDIA H200 data sheet"),
        (_NVIDIA, r"H100 PCIe", "H100 PCIe", 2000, 51, 756, "NVIDIA H100 data sheet"),
        (_NVIDIA, r"H100 80GB HBM3", "H100 SXM", 3350, 67, 989, "NVIDIA H100 data sheet"),
        (_NVIDIA, r"T4", "T4", 320, 8.1, 65, "NVIDIA T4 data sheet"),
        (_NVIDIA, r"L4", "L4", 300, 30.3, 121, "NVIDIA L4 data sheet"),
        (_NVIDIA, r"L40S", "L40S", 864, 91.6, 362, "NVIDIA L40S data sheet"),
        (_AMD, r"MI300X( OAM)?", "MI300X", 5300, 163.4, 1307, "AMD Instinct MI300X data sheet"),
        (_AMD, r"MI2[15]0", "MI250 (one die)", 1638, 22.6, 181, "AMD Instinct MI250 data sheet"),
        (_AMD, r"MI250X", "MI250X (one die)", 1638, 23.9, 191.5, "AMD Instinct MI250X data sheet"),
    )
)


def peaks_of(device_name: str) -> GpuPeaks | None:
    """The peaks of a GPU by the whole of its name, as the driver gives it; None for one that is not listed.

    Never by a part of the name: a GH200, an H100 NVL, an A100X or a MIG slice of an A100 has other peaks than the
    device whose name it contains.
    """
    return next((peaks for pattern, peaks in _PEAKS if pattern.fullmatch(device_name.strip())), None)
