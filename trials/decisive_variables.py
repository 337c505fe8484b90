"""Environment variables that decide how fast programs are."""

from __future__ import annotations

from collections.abc import Mapping

_DECISIVE_PREFIXES = (
    "CUBLASLT_",
    "CUBLAS_",
    "CUDNN_",
    "DNNL_",
    "GOMP_",
    "KMP_",
    "MALLOC_",
    "MKL_",
    "OMP_",
    "ONEDNN_",
    "PYTORCH_TUNABLEOP_",
    "TORCHINDUCTOR_",
    "TORCH_CUDNN_",
)
_DECISIVE = frozenset(
    {
        "ATEN_CPU_CAPABILITY",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_LAUNCH_BLOCKING",
        "LD_PRELOAD",  # another allocator, or another OpenMP
        "NVIDIA_TF32_OVERRIDE",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    }
)
_NOT_DECISIVE = frozenset(
    {
        # Inductor sets these by itself, the one when it first needs a folder, the other for a compiler of its own.
        "TORCHINDUCTOR_CACHE_DIR",
        "KMP_DUPLICATE_LIB_OK",
        # Where, by how many processes, or from which cache the same code is compiled, and what is said about it.
        "TORCHINDUCTOR_AUTOGRAD_CACHE",
        "TORCHINDUCTOR_COMPILE_THREADS",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
        "TORCHINDUCTOR_FX_GRAPH_CACHE",
        "TORCHINDUCTOR_UNIQUE_KERNEL_NAMES",
        "TORCHINDUCTOR_WORKER_LOGPATH",
        "TORCHINDUCTOR_WORKER_START",
        "TORCHINDUCTOR_WORKER_SUPPRESS_LOGGING",
        "ONEDNN_VERBOSE",
        "ONEDNN_VERBOSE_TIMESTAMP",
        "DNNL_VERBOSE",
        "DNNL_VERBOSE_TIMESTAMP",
        "MKL_VERBOSE",
        "KMP_VERSION",
        "KMP_WARNINGS",
        "OMP_DISPLAY_ENV",
    }
)
"""Of the variables with those prefixes."""


def decisive_variables(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Those of `variables` that decide kernels, threads or memory."""
    return tuple(
        (name, value)
        for name, value in sorted(variables.items())
        if name in _DECISIVE or (name.startswith(_DECISIVE_PREFIXES) and name not in _NOT_DECISIVE)
    )
