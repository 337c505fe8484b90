"""Versions of one kernel by one author, in an order that is known: the verdict never goes the wrong way round."""

from __future__ import annotations

import functools
from itertools import combinations

import pytest

from frx_graph.analyzers.comparison.comparison import compare_layers
from frx_graph.analyzers.comparison.matching import Winner
from frx_graph.analyzers.cuda.analysis import detect_cuda_defects
from frx_graph.analyzers.layers import Layers, SourceLayer
from frx_graph.evidence.cuda.parsing import parse_cuda

SEQUENCES: dict[str, tuple[str, ...]] = {
    # Rows and columns exchanged: through strided writes, a tile, and a padded tile.
    "transpose": (
        "__global__ void transpose(const float* in, float* out, int n) {"
        " int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y; out[x * n + y] = in[y * n + x]; }",
        "__global__ void transpose(const float* in, float* out, int n) { __shared__ float t[32][32];"
        " int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;"
        " t[threadIdx.y][threadIdx.x] = in[y * n + x]; __syncthreads();"
        " x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;"
        " out[y * n + x] = t[threadIdx.x][threadIdx.y]; }",
        "__global__ void transpose(const float* in, float* out, int n) { __shared__ float t[32][33];"
        " int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;"
        " t[threadIdx.y][threadIdx.x] = in[y * n + x]; __syncthreads();"
        " x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;"
        " out[y * n + x] = t[threadIdx.x][threadIdx.y]; }",
    ),
    # A matrix product: rows of threads down the columns, along the rows, and with tiles.
    "product": (
        "__global__ void mm(const float* a, const float* b, float* c, int n) {"
        " int row = blockIdx.x * 16 + threadIdx.x, col = blockIdx.y * 16 + threadIdx.y; float s = 0;"
        " for (int k = 0; k < n; ++k) s += a[row * n + k] * b[k * n + col]; c[row * n + col] = s; }",
        "__global__ void mm(const float* a, const float* b, float* c, int n) {"
        " int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x; float s = 0;"
        " for (int k = 0; k < n; ++k) s += a[row * n + k] * b[k * n + col]; c[row * n + col] = s; }",
        "__global__ void mm(const float* a, const float* b, float* c, int n) {"
        " __shared__ float x[32][32], y[32][32];"
        " int row = blockIdx.y * 32 + threadIdx.y, col = blockIdx.x * 32 + threadIdx.x; float s = 0;"
        " for (int t = 0; t < n / 32; ++t) {"
        " x[threadIdx.y][threadIdx.x] = a[row * n + t * 32 + threadIdx.x];"
        " y[threadIdx.y][threadIdx.x] = b[(t * 32 + threadIdx.y) * n + col]; __syncthreads();"
        " for (int k = 0; k < 32; ++k) s += x[threadIdx.y][k] * y[k][threadIdx.x]; __syncthreads(); }"
        " c[row * n + col] = s; }",
    ),
    # A structure of three floats, and three arrays.
    "points": (
        "__global__ void move(float* p, float d, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x;"
        " if (i < n) { p[3 * i] += d; p[3 * i + 1] += d; p[3 * i + 2] += d; } }",
        "__global__ void move(float* x, float* y, float* z, float d, int n) {"
        " int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) { x[i] += d; y[i] += d; z[i] += d; } }",
    ),
    # A copy of each eighth element first, then of neighbours, then of four at once.
    "copy": (
        "__global__ void copy(const float* in, float* out, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x;"
        " for (int k = 0; k < 8; ++k) out[8 * i + k] = in[8 * i + k]; }",
        "__global__ void copy(const float* in, float* out, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x;"
        " if (i < n) out[i] = in[i]; }",
        "__global__ void copy(const float4* in, float4* out, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x;"
        " if (i < n / 4) out[i] = in[i]; }",
    ),
    # A sum of a block: with remainders, by halves, with twice the elements, and within warps at the end.
    "sum": (
        "__global__ void sum(const float* in, float* out) { __shared__ float s[256]; int t = threadIdx.x;"
        " s[t] = in[blockIdx.x * 256 + t]; __syncthreads();"
        " for (int k = 1; k < 256; k *= 2) { if (t % (2 * k) == 0) s[t] += s[t + k]; __syncthreads(); }"
        " if (t == 0) out[blockIdx.x] = s[0]; }",
        "__global__ void sum(const float* in, float* out) { __shared__ float s[256]; int t = threadIdx.x;"
        " s[t] = in[blockIdx.x * 256 + t]; __syncthreads();"
        " for (int k = 128; k > 0; k /= 2) { if (t < k) s[t] += s[t + k]; __syncthreads(); }"
        " if (t == 0) out[blockIdx.x] = s[0]; }",
        "__global__ void sum(const float* in, float* out) { __shared__ float s[256]; int t = threadIdx.x;"
        " s[t] = in[blockIdx.x * 512 + t] + in[blockIdx.x * 512 + 256 + t]; __syncthreads();"
        " for (int k = 128; k > 0; k /= 2) { if (t < k) s[t] += s[t + k]; __syncthreads(); }"
        " if (t == 0) out[blockIdx.x] = s[0]; }",
    ),
    # A histogram: in global memory, and in shared memory first.
    "histogram": (
        "__global__ void count(const int* in, int* bins, int n) {"
        " for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += 256 * 64) atomicAdd(&bins[in[i]], 1); }",
        "__global__ void count(const int* in, int* bins, int n) { __shared__ int s[256]; s[threadIdx.x] = 0;"
        " __syncthreads();"
        " for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += 256 * 64) atomicAdd(&s[in[i]], 1);"
        " __syncthreads(); atomicAdd(&bins[threadIdx.x], s[threadIdx.x]); }",
    ),
    # Neighbours summed: from global memory each time, and from a tile.
    "window": (
        "__global__ void window(const float* in, float* out, int n) { int i = blockIdx.x * 256 + threadIdx.x;"
        " float s = 0; for (int k = 0; k < 33; ++k) s += in[i + k]; out[i] = s; }",
        "__global__ void window(const float* in, float* out, int n) { __shared__ float x[288];"
        " int i = blockIdx.x * 256 + threadIdx.x; x[threadIdx.x] = in[i];"
        " if (threadIdx.x < 32) x[256 + threadIdx.x] = in[i + 256]; __syncthreads();"
        " float s = 0; for (int k = 0; k < 33; ++k) s += x[threadIdx.x + k]; out[i] = s; }",
    ),
    # A sum that all threads add to one place, and one for each block first.
    "total": (
        "__global__ void total(const float* in, float* out) { int i = blockIdx.x * 256 + threadIdx.x;"
        " atomicAdd(out, in[i]); }",
        "__global__ void total(const float* in, float* out) { __shared__ float s[256];"
        " int t = threadIdx.x; s[t] = in[blockIdx.x * 256 + t]; __syncthreads();"
        " for (int k = 128; k > 0; k /= 2) { if (t < k) s[t] += s[t + k]; __syncthreads(); }"
        " if (t == 0) atomicAdd(out, s[0]); }",
    ),
    # A row scaled by a thread, and by a block.
    "rows": (
        "__global__ void scale(float* x, const float* by, int n) { int r = blockIdx.x * 256 + threadIdx.x;"
        " for (int k = 0; k < n; ++k) x[r * n + k] *= by[r]; }",
        "__global__ void scale(float* x, const float* by, int n) { int r = blockIdx.x;"
        " for (int k = threadIdx.x; k < n; k += 256) x[r * n + k] *= by[r]; }",
    ),
    # A barrier in each turn of a loop, and two for all.
    "barriers": (
        "__global__ void mix(float* x, int n) { __shared__ float s[256]; int t = threadIdx.x; float v = 0;"
        " for (int k = 0; k < 64; ++k) { s[t] = x[k * 256 + t]; __syncthreads(); v += s[255 - t]; __syncthreads(); }"
        " x[t] = v; }",
        "__global__ void mix(float* x, int n) { __shared__ float s[256]; int t = threadIdx.x; float v = 0;"
        " for (int k = 0; k < 64; ++k) v += x[k * 256 + t]; s[t] = v; __syncthreads(); x[t] = s[255 - t]; }",
    ),
}
PAIRS = [(name, *pair) for name, versions in SEQUENCES.items() for pair in combinations(range(len(versions)), 2)]


@functools.cache
def read(text: str) -> Layers:
    source = parse_cuda(text, "k.cu")
    return Layers(source=SourceLayer(source, detect_cuda_defects(source)))


@functools.cache
def compare(name: str, slow: int, fast: int) -> Winner:
    versions = SEQUENCES[name]
    found = compare_layers(read(versions[slow]), read(versions[fast]), "a", "b").verdict.winner
    swapped = compare_layers(read(versions[fast]), read(versions[slow]), "a", "b").verdict.winner
    assert (found, swapped) in ((Winner.A, Winner.B), (Winner.B, Winner.A), (Winner.UNKNOWN, Winner.UNKNOWN))
    return found


@pytest.mark.parametrize(("name", "slow", "fast"), PAIRS)
def test_the_faster_version_wins_or_nothing_is_said(name: str, slow: int, fast: int) -> None:
    assert compare(name, slow, fast) in (Winner.B, Winner.UNKNOWN)


def test_most_pairs_are_told() -> None:
    told = [compare(*pair) is Winner.B for pair in PAIRS]
    assert sum(told) >= 0.8 * len(told)


def test_the_same_code_is_a_tie() -> None:
    for versions in SEQUENCES.values():
        one = read(versions[0])
        assert compare_layers(one, read(versions[0]), "a", "b").verdict.winner is Winner.TIE


def test_other_code_without_a_difference_that_shows_is_not_told_apart() -> None:
    text = "__global__ void k(float* x) { x[threadIdx.x] = PLACE; }"
    found = compare_layers(read(text.replace("PLACE", "sinf(1)")), read(text.replace("PLACE", "2 + 2")), "a", "b")
    assert found.verdict.winner is Winner.UNKNOWN
    assert "measure both" in (found.verdict.reason or "")
