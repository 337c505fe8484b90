"""What a device kernel is for, and whether it computes on tensor cores, as far as its name tells.

Names are those of real traces and of the libraries' public sources: cuBLAS and cuDNN (`volta_sgemm_…`, `…_scudnn_…`,
`sm80_xmma_fprop_implicit_gemm_…`), CUTLASS, rocBLAS' Tensile (`Cijk_…`), MIOpen, NCCL and RCCL, flash attention, ATen,
Inductor. What converts, copies, normalises, pools or reduces `passes.trace.kernel_names` knows.
"""

from __future__ import annotations

import enum
import functools
import re

from frx_graph.analyzers.trace.kernel_names import CONVERSIONS, KernelClass, function_name, kernel_class


class KernelFamily(enum.StrEnum):
    """What a kernel is for."""

    GEMM = "gemm"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    COMMUNICATION = "communication"
    LAYOUT_CONVERSION = "layout_conversion"
    COPY = "copy"
    ELEMENTWISE = "elementwise"
    NORMALIZATION = "normalization"
    REDUCTION = "reduction"
    POOLING = "pooling"
    OTHER = "other"


_BY_CLASS = {
    KernelClass.COPY: KernelFamily.COPY,
    KernelClass.POINTWISE: KernelFamily.ELEMENTWISE,
    KernelClass.NORMALIZATION: KernelFamily.NORMALIZATION,
    KernelClass.REDUCTION: KernelFamily.REDUCTION,
    KernelClass.POOLING: KernelFamily.POOLING,
    **dict.fromkeys(CONVERSIONS, KernelFamily.LAYOUT_CONVERSION),
}
_COMMUNICATION = re.compile(r"nccl|rccl|cross_device_reduce|(?:one|two)_shot_all_?reduce|nvshmem", re.IGNORECASE)
_GENERIC = frozenset({"kernel", "kernel2", "device_kernel", "kernel_entry"})
"""Functions of CUTLASS and of what is made with it: the first template argument says what they do."""
_FAMILIES = tuple(
    (re.compile(pattern), family)
    for pattern, family in (
        (r"fmha|flash_(?:fwd|bwd|attn)|attention|sdpa|flashattn|_mha_", KernelFamily.ATTENTION),
        (
            r"[sdh]cudnn|convolve|fprop|dgrad|wgrad|winograd|conv(?:olution)?_|conv\dd|naive_conv",
            KernelFamily.CONVOLUTION,
        ),
        (
            r"igemm_(?:fwd|bwd|wrw)|miopensp3|im2col|col2im|^fft2d_|compute\w*offsets|^scalepacked",
            KernelFamily.CONVOLUTION,
        ),
        (r"gemm|gemv|^cijk_|splitkreduce|^dot_kernel|_(?:add|b)?mm_|matmul|^globalkernel", KernelFamily.GEMM),
    )
)
_TENSOR_CORES = re.compile(
    r"tensorop|tensor\d+x\d+x\d+|(?<!\d)(?:884|1688|16816|16832|8816|8832)(?!\d)|wgmma|[hi]mma|utcmma|tcgen05|_mi\d+x\d+x\d+",
    re.IGNORECASE,
)
_NO_TENSOR_CORES = re.compile(
    r"(?:maxwell|pascal|volta|turing|ampere)_(?:[sdcz]gemm|gcgemm|scudnn)|_simt_", re.IGNORECASE
)


@functools.lru_cache(maxsize=4096)
def kernel_family(name: str) -> KernelFamily:
    """The family of a kernel."""
    if _COMMUNICATION.search(function_name(name)):
        return KernelFamily.COMMUNICATION
    known = _BY_CLASS.get(kernel_class(name))
    if known in (KernelFamily.LAYOUT_CONVERSION, KernelFamily.COPY):
        return known
    said = _saying(name)
    found = next((family for pattern, family in _FAMILIES if pattern.search(said)), None)
    return found or known or KernelFamily.OTHER


@functools.lru_cache(maxsize=4096)
def on_tensor_cores(name: str) -> bool | None:
    """Whether a product or convolution runs on tensor (matrix) cores; None where its name does not tell."""
    if kernel_family(name) not in (KernelFamily.GEMM, KernelFamily.CONVOLUTION, KernelFamily.ATTENTION):
        return None
    said = _saying(name)
    if _TENSOR_CORES.search(said):
        return True
    return False if _NO_TENSOR_CORES.search(said) else None


def _saying(name: str) -> str:
    """The part of a name that says what the kernel does, in lower case."""
    function = function_name(name).lower()
    if function not in _GENERIC:
        return function
    return name.partition("<")[2].partition(",")[0].partition("<")[0].lower()
