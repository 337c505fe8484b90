"""Rank the implementation of a convolution, matrix product or attention by its kernel's name.

Only names that show the implementation are ranked; the others are None, which is neither fast nor slow.

oneDNN: https://uxlfoundation.github.io/oneDNN/dev_guide_verbose.html names the field, and the lists that it dispatches
from (`src/cpu/cpu_convolution_list.cpp`, `src/cpu/matmul/cpu_matmul_list.cpp`) are in order of preference: kernels made
for the problem (`brgconv…`, `brg_matmul`, `brdgmm_dw`, `jit…`), then `gemm`, which copies patches into a matrix, then
`ref`, plain loops. Names are joined by colons, nested primitives by `+`.

ATen: `ConvBackend` (`aten/src/ATen/native/ConvUtils.h`) has libraries on one side and `Slow2d`, `SlowDilated2d`,
`SlowTranspose2d`, `Slow3d` on the other, which are matrix products over copied patches; `SDPBackend`
(`aten/src/ATen/native/transformers/sdp_utils_cpp.h`) has fused attention and `math`, which materialises the scores.

GPU: there is no list, so parts of the names identify the kernels. For tensor cores that is the instruction, as in
Kineto's plug-in for TensorBoard (`tb_plugin/torch_tb_profiler/profiler/tensor_core.py`, after NVIDIA's PyProf) and in
CUTLASS (`tensorop` and `simt`: `media/docs/cpp/functionality.md`). Hopper's kernels name warp groups. Kernels on CUDA
cores have `simt`, or `sgemm` and `scudnn` in cuBLAS and cuDNN. ATen's patch-copying kernels have the names of their
source (`aten/src/ATen/native/cuda/im2col.cuh`, `vol2col.cuh`).
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from frx_graph.measure.operators.kernel_identities import Kernel, Source


class Work(enum.StrEnum):
    """Kinds of work that kernels do."""

    CONVOLUTION = "convolution"
    MATMUL = "matrix product"
    ATTENTION = "attention"


class Rank(enum.IntEnum):
    """Ranks of implementations, from slow to fast."""

    REFERENCE = 0
    """Plain loops, or scores in memory."""
    GENERAL = 1
    """A general matrix product over copied patches, or a GPU's kernel that leaves the tensor cores idle."""
    SPECIAL = 2
    """Made for this problem and this processor."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """A kernel's work and rank."""

    work: Work
    rank: Rank


_ONEDNN_WORK = {
    "convolution": Work.CONVOLUTION,
    "deconvolution": Work.CONVOLUTION,
    "matmul": Work.MATMUL,
    "inner_product": Work.MATMUL,
}
_SPECIAL = re.compile(r"(jit|brg|brdgmm)")
_WRAPPER = "conv:any+"
"""Prefix of a transposed convolution that is computed as a convolution's gradient; the rest names the algorithm."""

_ATEN = (
    (r"_?slow_conv(2d_forward|2d_backward|3d_forward|_dilated[23]d|_transpose[23]d)", Work.CONVOLUTION, Rank.GENERAL),
    (r"cudnn_convolution(_transpose|_relu|_add_relu)?", Work.CONVOLUTION, Rank.SPECIAL),
    (r"_scaled_dot_product_attention_math", Work.ATTENTION, Rank.REFERENCE),
    (r"_scaled_dot_product_(flash|efficient|cudnn)_attention(_for_cpu)?", Work.ATTENTION, Rank.SPECIAL),
)
"""Patterns of ATen's names. `mkldnn_convolution` is left out: oneDNN's log says which implementation it was."""

_CONVOLUTION_KERNEL = re.compile(r"fprop|dgrad|wgrad|convolve|conv2d|conv3d|winograd|im2col|vol2col|col2im|col2vol")
_MATMUL_KERNEL = re.compile(r"gemm")
_ATTENTION_KERNEL = re.compile(r"flash_fwd|flash_bwd|fmha|sdpa")
_TENSOR_CORES = re.compile(
    r"tensorop|[hsci](?:884|1688|16816|8816|16832)(?!\d)|16816|hmma|gmma|xmma_(?:sparse_)?gemm|"
    r"xmma_(?:warp_specialized_)?implicit_gemm|tensor\d+x\d+x\d+|warpgroupsize"
)
_CUDA_CORES = re.compile(r"simt|scudnn|sgemm")
_PATCH_COPIES = re.compile(r"im2col|vol2col|naive_conv")


def rank_implementation(kernel: Kernel) -> Implementation | None:
    """Return the work and rank of `kernel`; None if its name does not tell both."""
    if kernel.source is Source.ONEDNN:
        return _rank_onednn(kernel)
    if kernel.source is Source.ATEN:
        name = kernel.name.removeprefix("aten::")
        found = (Implementation(work, rank) for pattern, work, rank in _ATEN if re.fullmatch(pattern, name))
        return next(found, None)
    if kernel.source is Source.DEVICE:
        return _rank_device(kernel.name)
    return None


def _rank_onednn(kernel: Kernel) -> Implementation | None:
    work = _ONEDNN_WORK.get(kernel.kind)
    if work is None:
        return None
    ranks = []
    for nested in kernel.name.removeprefix(_WRAPPER).split("+"):
        parts = nested.split(":")
        # The Arm Compute Library's implementations are called `gemm:acl` and the like, and are the preferred ones.
        if "acl" in parts:
            return None
        if any(part == "ref" or part.startswith("ref_") for part in parts):
            ranks.append(Rank.REFERENCE)
        elif "gemm" in parts:
            ranks.append(Rank.GENERAL)
        elif any(_SPECIAL.match(part) for part in parts):
            ranks.append(Rank.SPECIAL)
        else:
            return None
    return Implementation(work, min(ranks))


def _rank_device(name: str) -> Implementation | None:
    if _ATTENTION_KERNEL.search(name):
        return Implementation(Work.ATTENTION, Rank.SPECIAL)
    if _CONVOLUTION_KERNEL.search(name):
        work = Work.CONVOLUTION
    elif _MATMUL_KERNEL.search(name):
        work = Work.MATMUL
    else:
        return None
    if _PATCH_COPIES.search(name):
        return Implementation(work, Rank.REFERENCE)
    # `cutlass_80_simt_sgemm` and `…_tf32f32_…_simt_…`: simt takes precedence over tf32.
    if "simt" not in name and _TENSOR_CORES.search(name):
        return Implementation(work, Rank.SPECIAL)
    if _CUDA_CORES.search(name):
        return Implementation(work, Rank.GENERAL)
    return None
