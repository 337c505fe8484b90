"""Environment variables that decide how fast programs are."""

from __future__ import annotations

from collections.abc import Mapping

from frx_graph.support.allocator import POOLING_VARIABLES, Allocation, find_allocation

_DECISIVE_PREFIXES = (
    "AOT_INDUCTOR_",  # of the C++ that is made with cpp_wrapper, too
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
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_COMPILE_OVERRIDE_",
    "TORCH_CUDNN_",
    "TORCH_DISABLE_NATIVE_",  # kernels in Python that replace torch's
    "TRITON_",
)
_DECISIVE = frozenset(
    {
        "ATEN_CPU_CAPABILITY",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_LAUNCH_BLOCKING",
        "CUTEDSL_ENABLE_AUTOTUNING",
        "CUTLASS_EPILOGUE_FUSION",
        "CXX",
        "DISABLE_PTXAS_OPT",
        "ENABLE_HOST_SIDE_TMA",
        "ENABLE_PERSISTENT_TMA_MATMUL",
        "ENABLE_TEMPLATE_AUTOWS",
        "ENABLE_TEMPLATE_TMA_STORE",
        "ENABLE_TMA_LOAD_FOR_TEMPLATE_EPILOGUE",
        "FLYDSL_ENABLE_AUTOTUNING",
        "GLIBC_TUNABLES",  # thresholds of malloc, huge pages
        "LD_PRELOAD",  # another allocator, or another OpenMP
        "NVIDIA_TF32_OVERRIDE",
        "PTXAS_OPTIONS",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_REORDER_COLLECTIVES_LIMIT",
        "PYTORCH_SINK_WAITS_LIMIT",
        "PYTORCH_SUM_INNER_TREE",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "TORCH_DYNAMO_DO_NOT_EMIT_RUNTIME_ASSERTS",
    }
)
_NOT_DECISIVE = frozenset(
    {
        # Inductor sets these itself, when it first needs a folder, a tool or a library, or for its compiler.
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "TRITON_LIBDEVICE_PATH",
        "TRITON_PTXAS_PATH",
        "KMP_DUPLICATE_LIB_OK",
        # These change where, by how many processes or from which cache the same code is compiled, and its logs.
        "TORCHINDUCTOR_AUTOGRAD_CACHE",
        "TORCHINDUCTOR_COMPILE_THREADS",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
        "TORCHINDUCTOR_FX_GRAPH_CACHE",
        "TORCHINDUCTOR_UNIQUE_KERNEL_NAMES",
        "TORCHINDUCTOR_WORKER_LOGPATH",
        "TORCHINDUCTOR_WORKER_START",
        "TORCHINDUCTOR_WORKER_SUPPRESS_LOGGING",
        "TORCHDYNAMO_EXTENDED_DEBUG_CPP",
        "TORCHDYNAMO_EXTENDED_DEBUG_CREATE_SYMBOL",
        "TORCHDYNAMO_EXTENDED_DEBUG_GUARD_ADDED",
        "TORCHDYNAMO_SUPPRESS_ERRORS",
        "TORCHDYNAMO_VERBOSE",
        "TRITON_ALWAYS_COMPILE",
        "TRITON_DUMP_DIR",
        "TRITON_HOME",
        "TRITON_KERNEL_DUMP",
        "TRITON_PRINT_AUTOTUNING",
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
"""Exceptions to those prefixes."""


def select_decisive_variables(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return those of `variables` that decide kernels, threads or memory, but not those that make glibc pool memory:
    a program may do that in its process as well, so the setup has it as its allocation."""
    left_out = (
        _NOT_DECISIVE | POOLING_VARIABLES.keys() if find_allocation(variables) is Allocation.POOLED else _NOT_DECISIVE
    )
    return tuple(
        (name, value)
        for name, value in sorted(variables.items())
        if name in _DECISIVE or (name.startswith(_DECISIVE_PREFIXES) and name not in left_out)
    )
