"""Classify GPU kernels by name.

The names come from real traces and the libraries' public sources: cuDNN 7 to 9, cuBLAS, CUTLASS, MIOpen, rocBLAS'
Tensile, flash attention, ATen and Inductor; `rules/communication` has those of communication. Only the function's own
name counts: a convolution `..._nhwckrsc_nchw_...` works on layouts, a parameter type `nchw2nhwc_params_t` names one,
and neither converts anything.
"""

from __future__ import annotations

import enum
import functools
import re

from frx_graph.evidence.kernel_name import is_pure_copy
from frx_graph.rules.communication_card import is_communication


class KernelClass(enum.StrEnum):
    """Classes of kernels by their limiting resource."""

    TO_CHANNELS_LAST = "conversion to channels-last"
    FROM_CHANNELS_LAST = "conversion from channels-last"
    TRANSPOSE = "layout conversion"
    """A library's conversion without a direction in its name."""
    COPY = "copy"
    POINTWISE = "pointwise"
    NORMALIZATION = "normalization"
    REDUCTION = "reduction"
    POOLING = "pooling"
    OTHER = "other"


CONVERSIONS = frozenset({KernelClass.TO_CHANNELS_LAST, KernelClass.FROM_CHANNELS_LAST, KernelClass.TRANSPOSE})
MEMORY_BOUND = frozenset(
    {KernelClass.COPY, KernelClass.POINTWISE, KernelClass.NORMALIZATION, KernelClass.REDUCTION, KernelClass.POOLING}
)
"""Kernels with a handful of operations for each element that they read or write."""

_PLAIN, _LAST = "nc(?:d?hw|w)", "n(?:d?hw|w)c"
_PATTERNS = {
    KernelClass.TO_CHANNELS_LAST: re.compile(rf"{_PLAIN}_?(?:to|2)_?(?:folded)?{_LAST}"),
    KernelClass.FROM_CHANNELS_LAST: re.compile(rf"(?:folded)?{_LAST}_?(?:to|2)_?{_PLAIN}"),
    KernelClass.TRANSPOSE: re.compile(
        r"^(?:batched_transpose_\d+x\d+|general_4d_reorder_|transpose_(?:nchw2cnhw|cnhw2nchw)"
        r"|tensortransformgeneric|generictranspose_kernel|nhwctofoldednhwc|foldednhwctonhwc)"
    ),
    KernelClass.COPY: re.compile(r"^catarraybatchedcopy"),
    KernelClass.NORMALIZATION: re.compile(
        r"^(?:bn_|batch_?norm|miopenbatchnorm|(?:vectorized_|cu)?layer_?norm|rowwisemoments|(?:cunn_)?softmax)"
    ),
    KernelClass.POOLING: re.compile(r"^(?:max_pool|avg_pool|adaptive_|pooling_)"),
    KernelClass.REDUCTION: re.compile(r"^(?:reduce_kernel|triton_(?:red|per|spl)_)"),
    KernelClass.POINTWISE: re.compile(r"elementwise_kernel|^multi_tensor_apply|^fused_dropout|^triton_(?:poi|for)_"),
}
"""Patterns of a function's name in lower case; the first that matches decides."""


@functools.lru_cache(maxsize=4096)
def classify_kernel(name: str) -> KernelClass:
    """Return the class of a kernel."""
    function = extract_function_name(name).lower()
    # ATen's copies are elementwise kernels with a functor, a template argument, that copies.
    if "direct_copy_kernel" in name or is_compiled_copy(name):
        return KernelClass.COPY
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.search(function)), KernelClass.OTHER)


def is_compiled_copy(name: str) -> bool:
    """Return True for an Inductor kernel that fuses nothing but copies and views."""
    return name.startswith("triton_") and is_pure_copy(name)


def extract_function_name(name: str) -> str:
    """Return the unqualified function of a demangled kernel name."""
    return extract_qualified_name(name).rpartition("::")[2]


def extract_qualified_name(name: str) -> str:
    """Return the function of a demangled kernel name with its namespaces, without a return type."""
    head = name.replace("(anonymous namespace)", "").replace("<unnamed>", "").partition("<")[0].partition("(")[0]
    return head.strip().rpartition(" ")[2]


class KernelFamily(enum.StrEnum):
    """Purposes of a kernel."""

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
_GENERIC = frozenset({"kernel", "kernel2", "device_kernel", "kernel_entry"})
"""Functions of CUTLASS and of libraries made with it: the first template argument gives their purpose."""
_FAMILIES = {
    KernelFamily.ATTENTION: re.compile(r"fmha|flash_(?:fwd|bwd|attn)|attention|sdpa|flashattn|_mha_"),
    KernelFamily.CONVOLUTION: re.compile(
        r"[sdh]cudnn|convolve|fprop|dgrad|wgrad|winograd|conv(?:olution)?_|conv\dd|naive_conv"
        r"|igemm_(?:fwd|bwd|wrw)|miopensp3|im2col|col2im|^fft2d_|compute\w*offsets|^scalepacked"
    ),
    KernelFamily.GEMM: re.compile(r"gemm|gemv|^cijk_|splitkreduce|^dot_kernel|_(?:add|b)?mm_|matmul|^globalkernel"),
}
_GENERATED = re.compile(r"triton_(?:poi|for|red|per|spl)_")
"""Loops that Inductor generates, by its categories of kernels: the rest of the name lists what was fused into one."""
_TENSOR_CORES = re.compile(
    r"tensorop|tensor\d+x\d+x\d+|(?<!\d)(?:884|1688|16816|16832|8816|8832)(?!\d)|wgmma|[hi]mma|utcmma|tcgen05|_mi\d+x\d+x\d+",
    re.IGNORECASE,
)
_NO_TENSOR_CORES = re.compile(
    r"(?:maxwell|pascal|volta|turing|ampere)_(?:[sdcz]gemm|gcgemm|scudnn)|_simt_", re.IGNORECASE
)


@functools.lru_cache(maxsize=4096)
def classify_kernel_family(name: str) -> KernelFamily:
    """Return the family of a kernel."""
    if is_communication(extract_qualified_name(name)):
        return KernelFamily.COMMUNICATION
    known = _BY_CLASS.get(classify_kernel(name))
    if known is not None and (known in (KernelFamily.LAYOUT_CONVERSION, KernelFamily.COPY) or _GENERATED.match(name)):
        return known
    said = _extract_purpose(name)
    found = next((family for family, pattern in _FAMILIES.items() if pattern.search(said)), None)
    return found or known or KernelFamily.OTHER


@functools.lru_cache(maxsize=4096)
def is_on_tensor_cores(name: str) -> bool | None:
    """Return True if a product or convolution runs on tensor (matrix) cores; None if its name does not show it."""
    if classify_kernel_family(name) not in (KernelFamily.GEMM, KernelFamily.CONVOLUTION, KernelFamily.ATTENTION):
        return None
    said = _extract_purpose(name)
    if _TENSOR_CORES.search(said):
        return True
    return False if _NO_TENSOR_CORES.search(said) else None


def _extract_purpose(name: str) -> str:
    """Return the part of a name that gives the purpose, in lower case."""
    function = extract_function_name(name).lower()
    if function not in _GENERIC:
        return function
    return name.partition("<")[2].partition(",")[0].partition("<")[0].lower()
