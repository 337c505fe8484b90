"""How far apart neighbouring threads are: what is said must hold for every warp, whatever the parameters are."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import FEW_EXAMPLES

from frx_graph.evidence.cuda.parsing import parse_cuda
from frx_graph.evidence.cuda.source import Access, Kernel, StrideKind

KERNEL = """
#include <cooperative_groups.h>
#define WIDTH 64
constexpr int ROWS = WIDTH / 4;
__device__ int flat(int row, int column, int pitch) { return row * pitch + column; }
__device__ int twice(int i) { if (i > 4) return 2 * i; return 2 * i + 8; }
template <int TILE>
__global__ void k(float* a, const float4* v, double* d, int n, int m) {
    __shared__ float tile[32][33];
    extern __shared__ float dynamic[];
    BODY
}
"""


def kernel(body: str) -> Kernel:
    (found,) = parse_cuda(KERNEL.replace("BODY", body), "k.cu").kernels
    return found


def last(body: str) -> Access:
    return kernel(body).accesses[-1]


@pytest.mark.parametrize(
    ("body", "kind", "stride"),
    [
        ("a[threadIdx.x] = 0;", StrideKind.COALESCED, "1"),
        ("a[n - threadIdx.x] = 0;", StrideKind.COALESCED, "-1"),
        ("a[blockIdx.x * blockDim.x + threadIdx.x] = 0;", StrideKind.COALESCED, "1"),
        ("int i = threadIdx.x + 1; int j = 2 * i; a[j] = 0;", StrideKind.STRIDED, "2"),
        ("int tid = threadIdx.x; int idx = tid * n; a[idx] = 0;", StrideKind.SYMBOLIC, "n"),
        ("a[threadIdx.x * n + threadIdx.x] = 0;", StrideKind.SYMBOLIC, "n + 1"),
        ("((float*)((char*)a + threadIdx.x * n))[0] = 0;", StrideKind.SYMBOLIC, "n/4"),
        ("float* row = (float*)((char*)a + threadIdx.y * n); row[threadIdx.x] = 0;", StrideKind.COALESCED, "1"),
        ("float* row = (float*)((char*)a + (threadIdx.x + 2) * n * 2); row[m] = 0;", StrideKind.SYMBOLIC, "n/2"),
        ("for (int i = 0; i < m; i++) ((float*)((char*)a + i * n))[threadIdx.x] = 0;", StrideKind.COALESCED, "1"),
        ("((float*)((char*)a + 2 * threadIdx.x))[0] = 0;", StrideKind.UNKNOWN, None),
        ("a[blockIdx.x] = 0;", StrideKind.BROADCAST, "0"),
        ("a[threadIdx.y * n] = 0;", StrideKind.BROADCAST, "0"),
        ("a[(size_t)threadIdx.x << 3] = 0;", StrideKind.STRIDED, "8"),
        ("a[threadIdx.x * WIDTH] = 0;", StrideKind.STRIDED, "64"),
        ("a[threadIdx.x * ROWS] = 0;", StrideKind.STRIDED, "16"),
        ("a[threadIdx.x / 32] = 0;", StrideKind.BROADCAST, "0"),
        ("a[threadIdx.x % 32 * n] = 0;", StrideKind.SYMBOLIC, "n"),
        ("a[(threadIdx.x & 31) + (threadIdx.x >> 5) * 100] = 0;", StrideKind.COALESCED, "1"),
        ("a[threadIdx.x / 16] = 0;", StrideKind.UNKNOWN, None),
        ("a[(threadIdx.x + 1) / 32] = 0;", StrideKind.UNKNOWN, None),
        ("a[(threadIdx.x + n) / 32] = 0;", StrideKind.UNKNOWN, None),
        ("int i = threadIdx.x, row = i / n, column = i % n; a[row * n + column] = 0;", StrideKind.COALESCED, "1"),
        ("int i = threadIdx.x, row = i / n, column = i % n; a[column * m + row] = 0;", StrideKind.UNKNOWN, None),
        ("a[threadIdx.x * (n - m)] = 0;", StrideKind.UNKNOWN, None),
        ("a[threadIdx.x * threadIdx.x] = 0;", StrideKind.UNKNOWN, None),
        ("a[(int)a[threadIdx.x]] = 0;", StrideKind.UNKNOWN, None),
        ("a[foreign(threadIdx.x)] = 0;", StrideKind.UNKNOWN, None),
        ("a[flat(threadIdx.x, blockIdx.x, n)] = 0;", StrideKind.SYMBOLIC, "n"),
        ("a[flat(blockIdx.x, threadIdx.x, n)] = 0;", StrideKind.COALESCED, "1"),
        ("a[twice(blockIdx.x)] = 0;", StrideKind.BROADCAST, "0"),
        ("float* p = a + n; p += threadIdx.x * 4; p[2] = 0;", StrideKind.STRIDED, "4"),
        ("*(a + threadIdx.x) = 0;", StrideKind.COALESCED, "1"),
        ("float* p = &a[threadIdx.x * n]; *p = 0;", StrideKind.SYMBOLIC, "n"),
        ("float& r = a[3 * threadIdx.x]; r = 0;", StrideKind.STRIDED, "3"),
        ("float4* p = reinterpret_cast<float4*>(a) + threadIdx.x; p->x = 0;", StrideKind.COALESCED, "1"),
        ("float* p = (float*)v; p[4 * threadIdx.x] = 0;", StrideKind.STRIDED, "4"),
        ("for (int i = threadIdx.x; i < n; i += blockDim.x) a[i] = 0;", StrideKind.COALESCED, "1"),
        ("for (int i = 0; i < n; ++i) a[threadIdx.x * n + i] = 0;", StrideKind.SYMBOLIC, "n"),
        ("int i = threadIdx.x; while (i < n) { a[i] = 0; i += gridDim.x * blockDim.x; }", StrideKind.COALESCED, "1"),
        ("for (int i = 0; i < n; i += threadIdx.x) a[i] = 0;", StrideKind.UNKNOWN, None),
        ("for (int s = 1; s < n; s *= 2) a[2 * s * threadIdx.x] = 0;", StrideKind.SYMBOLIC, "2*s"),
        ("int i = n > 3 ? threadIdx.x : threadIdx.x + 4; a[i] = 0;", StrideKind.COALESCED, "1"),
        ("int i = threadIdx.x > 3 ? threadIdx.x : 0; a[i] = 0;", StrideKind.UNKNOWN, None),
        ("int i = 0; if (n > 3) i = threadIdx.x; a[i] = 0;", StrideKind.UNKNOWN, None),
        ("int i = threadIdx.x; if (n > 3) { i += m; } else { i += 7; } a[i] = 0;", StrideKind.COALESCED, "1"),
        ("int i; foreign(&i); a[i] = 0;", StrideKind.UNKNOWN, None),
        ('int i = 0; asm("mov.u32 %0, %laneid;" : "=r"(i)); a[i] = 0;', StrideKind.UNKNOWN, None),
        ("auto b = cooperative_groups::this_thread_block(); a[b.thread_rank()] = 0;", StrideKind.COALESCED, "1"),
        ("auto b = cg::this_thread_block(); a[b.thread_index().x * 5] = 0;", StrideKind.STRIDED, "5"),
        (
            "cg::thread_block_tile<32> t = cg::tiled_partition<32>(cg::this_thread_block());"
            "a[t.thread_rank() * 2] = 0;",
            StrideKind.STRIDED,
            "2",
        ),
        (
            "auto t = cg::tiled_partition<32>(cg::this_thread_block()); a[t.meta_group_rank()] = 0;",
            StrideKind.BROADCAST,
            "0",
        ),
        (
            "auto t = cg::tiled_partition<8>(cg::this_thread_block()); a[t.meta_group_rank()] = 0;",
            StrideKind.UNKNOWN,
            None,
        ),
    ],
)
def test_strides(body: str, kind: StrideKind, stride: str | None) -> None:
    found = last(body).stride
    assert (found.kind, found.text) == (kind, stride)


def test_bytes_are_those_of_the_element() -> None:
    assert [access.element_bytes for access in kernel("d[threadIdx.x] = v[threadIdx.x].x;").accesses] == [16, 8]
    (unknown,) = kernel("T* p = (T*)a; p[threadIdx.x] = 0;").accesses
    assert unknown.element_bytes is None


@pytest.mark.parametrize(
    ("body", "turns"),
    [
        ("tile[0][threadIdx.x] = 0;", 1),
        ("tile[threadIdx.x][0] = 0;", 1),
        ("__shared__ float square[32][32]; square[threadIdx.x][threadIdx.y] = 0;", 32),
        ("__shared__ float square[32][32]; square[threadIdx.x][0] = 0;", 32),
        ("__shared__ double wide[64]; wide[threadIdx.x] = 0;", 1),
        ("__shared__ double wide[64]; wide[2 * threadIdx.x] = 0;", 2),
        ("__shared__ char narrow[64]; narrow[threadIdx.x] = 0;", 1),
        ("__shared__ float4 vector[64]; vector[threadIdx.x] = v[0];", 1),
        ("dynamic[threadIdx.x * 2] = 0;", 2),
        ("dynamic[threadIdx.x * 3] = 0;", 1),
        ("for (int s = 1; s < n; s *= 2) dynamic[2 * s * threadIdx.x] = 0;", 2),
        ("dynamic[threadIdx.x * n] = 0;", None),
        ("dynamic[threadIdx.x * TILE] = 0;", None),
        ("dynamic[threadIdx.x + n] = 0;", 1),
    ],
)
def test_bank_conflicts(body: str, turns: int | None) -> None:
    assert kernel(body).accesses[-1].conflict == turns


def test_a_conflict_must_hold_for_warps_of_every_width() -> None:
    # Of a warp 4 threads wide, the next rows take other banks.
    assert last("tile[threadIdx.x][threadIdx.y] = 0;").conflict is None
    assert last("dynamic[threadIdx.x * 8 + threadIdx.y] = 0;").conflict is None
    assert last("dynamic[threadIdx.x * 32 + threadIdx.y * 32] = 0;").conflict == 32


EXPRESSIONS = st.recursive(
    st.sampled_from(["threadIdx.x", "n", "m", "blockIdx.x * blockDim.x", "1", "3", "32", "64"]),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "%", "&"]), inner).map(
            lambda drawn: f"({drawn[0]} {drawn[1]} {drawn[2]})"
        )
        | st.tuples(inner, st.sampled_from(["<< 2", ">> 5", "/ 32", "% 32", "& 31"])).map(
            lambda drawn: f"({drawn[0]} {drawn[1]})"
        )
    ),
    max_leaves=6,
)


def worth(expression: str, lane: int, n: int, m: int, block: int) -> int:
    text = expression.replace("blockIdx.x * blockDim.x", str(block * 128)).replace("threadIdx.x", str(lane))
    return int(eval(text.replace("/", "//"), {"n": n, "m": m}))


@settings(FEW_EXAMPLES)
@given(EXPRESSIONS, st.integers(33, 200), st.integers(1, 70), st.integers(0, 5), st.integers(0, 3))
def test_reported_stride_holds_for_every_lane(expression: str, n: int, m: int, block: int, warp: int) -> None:
    stride = last(f"a[{expression}] = 0;").stride
    if stride.elements is None:
        return
    try:
        places = [worth(expression, 32 * warp + lane, n, m, block) for lane in range(32)]
    except ZeroDivisionError:
        return
    # C++ rounds towards zero, and Python down: below zero they differ.
    if "-" not in expression:
        assert {right - left for left, right in pairwise(places)} == {stride.elements}
