"""Names of CUDA functions by their effect: barriers, shuffles, atomics, loads and stores, arithmetic."""

from __future__ import annotations

import functools
import re

from frx_graph.evidence.cuda.source import BarrierKind, Use

BARRIERS = {
    **{f"__syncthreads{result}": BarrierKind.BLOCK for result in ("", "_count", "_and", "_or")},
    "__barrier_sync": BarrierKind.BLOCK,
    "__syncwarp": BarrierKind.WARP,
    **dict.fromkeys(["__pipeline_wait_prior", "__mbarrier_arrive", "__mbarrier_test_wait"], BarrierKind.ASYNC),
}
ALONE = frozenset(["__pipeline_wait_prior"])
"""Waits that look like barriers: a thread waits for its own copies, and for no other thread."""
COPIES = frozenset(["__pipeline_memcpy_async", "memcpy_async"])
"""`f(to, from, …)`: a thread copies to shared memory, and the copy is complete after a wait."""
SHARED = "SharedMemory"
"""`SharedMemory<T>()` of NVIDIA's samples, which many programs have taken over: dynamic shared memory as `T*`."""
PIPELINE = "pipeline"
"""A `cuda::pipeline` of one thread, the result of `make_pipeline()`."""
GROUP_BARRIERS = {"block": BarrierKind.BLOCK, "tile": BarrierKind.GROUP, "grid": BarrierKind.GRID}
BARRIER_METHODS = {
    **dict.fromkeys(["sync", "barrier_wait"], BarrierKind.GROUP),
    **dict.fromkeys(["wait", "arrive_and_wait", "arrive", "consumer_wait", "producer_acquire"], BarrierKind.ASYNC),
}
"""Methods of groups, `cuda::barrier` and `cuda::pipeline`."""
ASM_BARRIER = re.compile(
    r"\b(?:bar(?:rier)?(?:\.cta)?\.(?:sync|arrive|red|warp)|barrier\.cluster|mbarrier\.|cp\.async\.)"
)
ASM_ALONE = re.compile(r"\bcp\.async\.(?!bulk|mbarrier)")
"""Copies of one thread, and the waits for them."""
ASM_COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\b[^;]*?\](?:[^;]*?,\s*(4|8|16)\b)?")
ASM_ADDRESS = re.compile(r"\bcvta\.to\.shared\b")
"""The address of what a pointer points to."""
ASM_MATRIX = re.compile(r"\bldmatrix\.")
"""Each thread gives the address of 16 bytes that its warp reads."""
_ASM_CODE = re.compile(r"(?:^|[;{}])\s*(?:@!?%?\w+\s+)?\.?([a-z]\w*)")
_ASM_PLAIN = frozenset(
    [
        *("abs", "add", "and", "atom", "bfe", "bfi", "brev", "clz", "cos", "cvt", "cvta", "ex2", "fma", "ld"),
        *("ldmatrix", "ldu", "lg2", "lop3", "mad", "max", "min", "mma", "mov", "mul", "neg", "not", "or", "popc"),
        *("prefetch", "prmt", "rcp", "red", "reg", "rsqrt", "selp", "set", "setp", "shf", "shl", "shr", "sin", "sqrt"),
        *("st", "stmatrix", "sub", "tanh", "wmma", "xor"),
    ]
)
"""Instructions in which no thread waits for another: https://docs.nvidia.com/cuda/parallel-thread-execution"""
MATRICES = {"load_matrix_sync": {Use.READ: 1}, "store_matrix_sync": {Use.WRITE: 0}}
"""A warp reads or writes a matrix that begins at one of the arguments: `wmma::load_matrix_sync(fragment, from, …)`."""
WORDS = {4: "float", 8: "float2", 16: "float4"}
"""Element types by the bytes that a thread copies at once."""
ATOMIC = re.compile(r"atomic(?:Add|Sub|Exch|Min|Max|Inc|Dec|CAS|And|Or|Xor)(?:_block|_system)?$")
LEGACY_WARP = frozenset(["__shfl", "__shfl_up", "__shfl_down", "__shfl_xor", "__any", "__all", "__ballot"])
"""https://docs.nvidia.com/cuda/volta-tuning-guide/#independent-thread-scheduling: CUDA 9 replaced these by functions
with a mask, and compute capability 7.0 and higher lack them."""
WARP = re.compile(r"__(?:shfl(?:_up|_down|_xor)?|any|all|ballot|match_any|match_all|reduce_\w+)_sync$")
LOADS = frozenset(["__ldg", "__ldcg", "__ldca", "__ldcs", "__ldlu", "__ldcv"])
STORES = frozenset(["__stwb", "__stcg", "__stcs", "__stwt"])
CONVERSION = re.compile(
    r"(?:float|double|int|half|static_cast|__half2float|__float2half(?:_rn)?|__bfloat162float|__float2bfloat16(?:_rn)?"
    r"|__nv_cvt_fp8_to_halfraw|__int2float_rn|__float2int_rn|__double2float_rn)$"
)
FUSED = frozenset(["fma", "fmaf", "__fmaf_rn", "__fma_rn", "__hfma", "__fmaf_ieee_rn"])
EXTREMES = {"min": "min", "umin": "min", "max": "max", "umax": "max"}
PRODUCTS = frozenset(["__fmul_rn", "__hmul", "__mul24", "__umul24", "__dmul_rn"])
_PURE = re.compile(
    r"(?:__(?!sync)\w+|(?:std::|cuda::std::)?(?:min|max|abs|pow|exp|log|sqrt|sin|cos|tan|tanh|floor|ceil|round|trunc"
    r"|fabs|fmod|isnan|isinf|swap|move|forward|numeric_limits|erf|rsqrt|cbrt|fmin|fmax|hypot|atan|atan2|asin|acos"
    r"|sinh|cosh|exp2|exp10|log2|log10|log1p|expm1|rint|nearbyint|ldexp|copysign|sincos|normcdf|lrint|assert|printf"
    r"|saturate|clamp|umin|umax|make_\w+|dim3|tex\w*|surf\w*|clock|clock64|curand\w*|cu\w+|wmma::\w+|nvcuda::\w+|Cplx\w*)"
    r"[fFhldu]{0,2})$"
)


@functools.lru_cache(maxsize=4096)
def is_pure(name: str) -> bool:
    """Return True for a function that is known not to make a thread wait."""
    return _PURE.match(name.split("<", 1)[0]) is not None


def is_plain_assembly(code: str) -> bool:
    """Return True for inline assembly in which no thread waits for another. `code` is the text of the strings."""
    found = _ASM_CODE.findall(code.replace('"', " ").replace("\\n", " ").replace("\\t", " "))
    return bool(found) and all(one in _ASM_PLAIN for one in found)
