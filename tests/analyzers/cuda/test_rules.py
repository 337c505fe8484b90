"""Each rule of CUDA source finds the defect in a kernel that has it, and is silent on the same kernel without it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from frx_graph.analyze.cuda_source import analyze_cuda
from frx_graph.analyzers.cuda import DEVICE_DETECTORS, SOURCE_DETECTORS
from frx_graph.analyzers.cuda.analysis import detect_cuda_defects
from frx_graph.evidence.cuda.parsing import parse_cuda
from frx_graph.rules.gpu_profile import require_gpu

ZOO = Path(__file__).parents[2] / "data" / "cuda"
RULES = [*SOURCE_DETECTORS, *DEVICE_DETECTORS]


def rules(text: str) -> list[str]:
    return [finding.card.id for finding in detect_cuda_defects(parse_cuda(text, "k.cu")).findings]


@pytest.mark.parametrize("rule", RULES)
def test_the_defect_is_found_and_its_absence_is_not(rule: str) -> None:
    source, bad = analyze_cuda(ZOO / f"{rule}_bad.cu")
    found = [finding for finding in bad.findings if finding.card.id == rule]
    assert found
    lines = (ZOO / f"{rule}_bad.cu").read_text().count("\n")
    assert all(0 < finding.line <= lines and finding.seen for finding in found)
    assert {finding.kernel for finding in found} <= {kernel.name for kernel in source.kernels}
    _, good = analyze_cuda(ZOO / f"{rule}_good.cu")
    assert good.findings == ()


def test_the_zoo_has_nothing_else() -> None:
    names = {f"{rule}_{kind}.cu" for rule in RULES for kind in ("bad", "good")}
    assert {path.name for path in ZOO.glob("*.cu")} == names


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
@pytest.mark.parametrize("path", sorted(ZOO.glob("*.cu")), ids=lambda path: path.stem)
def test_the_zoo_compiles(path: Path, tmp_path: Path) -> None:
    command = ["nvcc", "-ptx", "-arch=sm_80", "-o", str(tmp_path / "out.ptx"), str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "text",
    [
        # One thread at work.
        "__global__ void k(float* a, int n) { if (threadIdx.x == 0) a[threadIdx.x * n] = 0; }",
        # Three neighbours of a colour, all of them used.
        "__global__ void k(float* a, float* b) { int i = 3 * threadIdx.x; b[0] = a[i] + a[i + 1] + a[i + 2]; }",
        # A flag.
        "__global__ void k(float* a, float* b, int is_vector) { b[threadIdx.x] = a[threadIdx.x * is_vector]; }",
        # What a macro does with its argument is not known.
        "#define WIDE(x) (*(float4*)&(x))\n"
        "__global__ void k(float* a, float4* b) { b[threadIdx.x] = WIDE(a[4 * threadIdx.x]); }",
        # Gathered.
        "__global__ void k(float* a, const int* at) { a[at[threadIdx.x]] = 0; }",
        # Three coordinates, all of them used.
        "__global__ void k(float* a, float* b) { int i = threadIdx.x * DIM; b[0] = a[i] + a[i + 1] + a[i + 2]; }",
        # Any dimension may be contiguous.
        "__global__ void k(float* a, int x_stride, int y_stride) {\n"
        "a[threadIdx.y * y_stride + threadIdx.x * x_stride] = 0; }",
        # Neighbours are along y, and next to each other.
        "__global__ void k(float* a, int n) { a[threadIdx.x * n + threadIdx.y] = 0; }\n"
        "void run(float* a, int n) { /* int wide = 2; */ int wide = 1; dim3 block(wide, n); k<<<n, block>>>(a, n); }",
    ],
)
def test_uncoalesced_access_is_silent(text: str) -> None:
    assert rules(text) == []


@pytest.mark.parametrize(
    "between",
    [
        "__syncthreads();",
        "__syncwarp();",
        "cg::sync(block);",
        "tile.sync();",
        "helper();",
        "foreign();",
        "SYNC;",
        "BARRIER(0);",
        'asm volatile("bar.sync 0;");',
        "bar.arrive_and_wait();",
        "if (n) __syncthreads();",
    ],
)
def test_anything_that_may_be_a_barrier_is_one(between: str) -> None:
    text = (
        "__device__ void helper() { __syncthreads(); }\n"
        "__global__ void k(float* a, int n) { __shared__ float s[256]; s[threadIdx.x] = a[threadIdx.x];\n"
        f"{between}\na[threadIdx.x] = s[threadIdx.x + 1]; }}"
    )
    assert "shared_memory_without_barrier" not in rules(text)
    assert "shared_memory_without_barrier" in rules(text.replace(between, ""))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # What only the first thread has written.
        ("__shared__ float s; if (threadIdx.x == 0) s = a[0]; a[threadIdx.x] = s;", True),
        ("__shared__ float s; if (threadIdx.x == 0) { s = a[0]; a[0] = s; }", False),
        # A row of its own.
        ("__shared__ float s[256]; s[4 * threadIdx.x] = 1; a[threadIdx.x] = s[4 * threadIdx.x + 1];", False),
        ("__shared__ float s[256]; s[4 * threadIdx.x] = 1; a[threadIdx.x] = s[4 * threadIdx.x + 4];", True),
        # Two ways.
        ("__shared__ float s[256]; if (n) s[threadIdx.x] = 1; else a[threadIdx.x] = s[threadIdx.x + 1];", False),
        # Wherever that is.
        ("__shared__ float s[256]; s[threadIdx.x] = 1; a[threadIdx.x] = s[n];", False),
    ],
)
def test_races(text: str, found: bool) -> None:
    assert ("shared_memory_without_barrier" in rules(f"__global__ void k(float* a, int n) {{ {text} }}")) is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("if (threadIdx.x < n) __syncthreads();", True),
        ("for (int i = threadIdx.x; i < n; i += blockDim.x) __syncthreads();", True),
        ("if (threadIdx.y == 0) __syncthreads();", True),
        ("if (threadIdx.x >= n) return; __syncthreads(); a[0] = 1;", False),
        ("if (n > 3) __syncthreads(); a[0] = 1;", False),
        ("if (a[threadIdx.x] > 3) __syncthreads(); a[0] = 1;", False),
        ("if (threadIdx.x < BLOCK) __syncthreads(); a[0] = 1;", False),
        ("for (int i = 0; i < n; ++i) __syncthreads(); a[0] = 1;", False),
        ("if (threadIdx.x < n) __syncwarp(); a[0] = 1;", False),
        ("if (threadIdx.x < n) { __syncthreads(); a[0] = 1; } else { __syncthreads(); a[1] = 2; }", False),
    ],
)
def test_barriers_below_conditions(text: str, found: bool) -> None:
    assert ("conditional_syncthreads" in rules(f"__global__ void k(float* a, int n) {{ {text} }}")) is found


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("if (threadIdx.x % n == 0) a[0] = 1; else a[threadIdx.x] = 2;", "warp_divergence"),
        ("if ((threadIdx.x + n) / 32 == 0) a[0] = 1; else a[threadIdx.x] = 2;", "warp_divergence"),
        ("if (threadIdx.x < n / 32 * 32) __syncthreads(); a[0] = 1;", "conditional_syncthreads"),
        (
            "if (threadIdx.x < n) { __syncthreads(); a[0] = 1; return; } __syncthreads(); a[1] = 1;",
            "conditional_syncthreads",
        ),
        (
            "__shared__ float s[512]; s[threadIdx.x] = 1; a[threadIdx.x] = s[threadIdx.x + 256];",
            "shared_memory_without_barrier",
        ),
        (
            "__shared__ float s[192]; if (threadIdx.x < 16) s[6 * threadIdx.x] = 1;",
            "possible_shared_memory_bank_conflict",
        ),
    ],
)
def test_former_false_positives_are_not_reported(text: str, rule: str) -> None:
    assert rule not in rules(f"__global__ void k(float* a, int n) {{ {text} }}")


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("(threadIdx.x / 8 * n + threadIdx.x % 8 * 4) % 4 == 0", False),
        ("(n & (threadIdx.x < m)) != 0", False),
        ("threadIdx.x % n == 0", False),
        ("threadIdx.x / 3 % 2 == 0", True),
        ("(threadIdx.x & m) == 0", True),
    ],
)
def test_a_remainder_of_the_place_splits_a_warp(condition: str, found: bool) -> None:
    body = f"if ({condition}) a[threadIdx.x] += 1; else a[threadIdx.x] = a[threadIdx.x + n];"
    loop = "for (int m = 1; m < n; m *= 2)"
    assert ("warp_divergence" in rules(f"__global__ void k(float* a, int n) {{ {loop} {{ {body} }} }}")) == found


def test_shuffles_of_hip_have_no_mask() -> None:
    text = "__global__ void k(float* a) { a[threadIdx.x] = __shfl_xor(a[threadIdx.x], 1); }"
    assert rules(text) == ["warp_level_sync_misuse"]
    assert rules(f"#include <hip/hip_runtime.h>\n{text}") == []
    assert rules(f'#include "kernels/rocm/shims.h"\n{text}') == []
    assert rules(f"// unlike hip/hip_runtime.h\n#if USE_ROCM\n#endif\n{text}") == ["warp_level_sync_misuse"]


@pytest.mark.parametrize(("between", "rule"), [("s.a = n;", None), ("", "unnecessary_syncthreads")])
def test_a_field_of_shared_memory_is_written_between_two_barriers(between: str, rule: str | None) -> None:
    text = (
        "__global__ void k(float* a, int n) { extern __shared__ char m[]; auto& s = reinterpret_cast<Own&>(m);\n"
        f"a[threadIdx.x] = s.b.c;\n__syncthreads();\n{between}\n__syncthreads();\na[threadIdx.x] += s.a; }}"
    )
    assert rules(text) == ([] if rule is None else [rule])


def test_squared_difference_is_not_a_matrix_product() -> None:
    text = (
        "__global__ void k(const float* a, const float* b, float* c, int n) { float sum = 0;\n"
        "for (int i = 0; i < n; ++i) { float d = a[threadIdx.y * n + i] - b[i * n + threadIdx.x]; sum += d * d; }\n"
        "c[threadIdx.y * n + threadIdx.x] = sum; }"
    )
    assert rules(text) == []
    assert rules(text.replace("sum += d * d", "sum += a[threadIdx.y * n + i] * b[i * n + threadIdx.x]")) == [
        "no_shared_memory_tiling",
        "fp32_only_matmul",
    ]


@pytest.mark.parametrize(
    ("gpu", "threads", "kib", "occupancy", "limiter"),
    [
        ("sm_80", 256, 0, 1.0, None),
        ("sm_80", 32, 0, 0.5, "blocks"),
        ("sm_86", 1024, 0, 32 / 48, "warps"),
        ("sm_75", 256, 40, 8 / 32, "shared memory"),
        ("sm_90", 64, 40, 5 * 2 / 64, "shared memory"),
    ],
)
def test_occupancy_is_bound_by_threads_blocks_and_shared_memory(
    gpu: str, threads: int, kib: int, occupancy: float, limiter: str | None
) -> None:
    shared = f"__shared__ char t[{kib << 10}]; t[0] = 1;" if kib else ""
    text = f"__global__ void k() {{ {shared} }}\nvoid f(int n) {{ k<<<n, {threads}>>>(); }}"
    (launch,) = detect_cuda_defects(parse_cuda(text, "k.cu"), require_gpu(gpu)).launches
    assert [(one.occupancy, one.limiter) for one in launch.residency] == [(occupancy, limiter)]


@pytest.mark.parametrize(
    ("text", "gpu", "found"),
    [
        # 10,000 bytes a block: 9 blocks of 64 threads are 18 of 48 warps on Ada, 20 blocks 40 of 64 on Hopper.
        ("__shared__ float t[2500]; t[threadIdx.x] = a[threadIdx.x];", None, []),
        ("__shared__ float t[2500]; t[threadIdx.x] = a[threadIdx.x];", "H100", []),
        ("__shared__ float t[2500]; t[threadIdx.x] = a[threadIdx.x];", "RTX4090", ["low_theoretical_occupancy"]),
        # A third of Turing's shared memory is little more than a sixth of what Hopper has.
        ("__shared__ float t[9000]; t[threadIdx.x] = a[threadIdx.x];", None, ["large_static_shared_memory"]),
        ("__shared__ float t[9000]; t[threadIdx.x] = a[threadIdx.x];", "H100", []),
        ("__shared__ float t[6000]; t[threadIdx.x] = a[threadIdx.x];", None, []),
        ("__shared__ float t[6000]; t[threadIdx.x] = a[threadIdx.x];", "T4", ["large_static_shared_memory"]),
    ],
)
def test_findings_that_depend_on_the_gpu(text: str, gpu: str | None, found: list[str]) -> None:
    threads = 64 if "2500" in text else 512
    source = parse_cuda(
        f"__global__ void k(float* a) {{ {text} }}\nvoid f(int n) {{ k<<<n, {threads}>>>(0); }}", "k.cu"
    )
    analysis = detect_cuda_defects(source, None if gpu is None else require_gpu(gpu))
    assert [finding.card.id for finding in analysis.findings] == found


@pytest.mark.parametrize(
    ("gpu", "launch", "suggestion"),
    [
        ("RTX4090", "<<<4096, 32>>>", "take 64 threads"),
        ("RTX4090", "<<<4096, 64>>>", None),
        ("H100", "<<<100, 256>>>", "100 blocks: 32 of the 132 multiprocessors of H100 SXM get none"),
        ("sm_90", "<<<100, 256>>>", None),
        ("H100", "<<<1, 32>>>", None),
        (None, "<<<100, 32>>>", None),
    ],
)
def test_a_launch_is_advised_on_for_a_gpu(gpu: str | None, launch: str, suggestion: str | None) -> None:
    source = parse_cuda(f"__global__ void k() {{}}\nvoid f() {{ k{launch}(); }}", "k.cu")
    (advice,) = detect_cuda_defects(source, None if gpu is None else require_gpu(gpu)).launches
    assert advice.suggestion is None if suggestion is None else suggestion in (advice.suggestion or "")


def test_the_gravest_come_first() -> None:
    text = (ZOO / "warp_divergence_bad.cu").read_text() + (ZOO / "uncoalesced_access_bad.cu").read_text()
    found = detect_cuda_defects(parse_cuda(text, "k.cu")).findings
    assert [finding.card.severity for finding in found] == sorted(
        (finding.card.severity for finding in found), key=["high", "medium", "low"].index
    )
    assert found[0].card.id == "uncoalesced_access"


def test_launches_with_non_constant_sizes_are_not_judged() -> None:
    text = "__global__ void k(float* a) { a[threadIdx.x] = 0; }\nvoid f(int n, int t) { k<<<n, t>>>(0); }"
    analysis = detect_cuda_defects(parse_cuda(text, "k.cu"))
    assert analysis.findings == ()
    (launch,) = analysis.launches
    assert (launch.threads, launch.suggestion, launch.residency) == (None, None, ())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # What the next turn reads, another has written in this one.
        ("for (int s = n; s > 0; s /= 2) { if (i < s) x[i] += x[i + s]; }", True),
        ("for (int s = n; s > 0; s /= 2) { if (i < s) x[i] += x[i + s]; __syncthreads(); }", False),
        # A thread's own elements, a block apart.
        (
            "for (int k = 0; k < n; ++k) x[i + k * 256] = k; for (int k = 0; k < n; ++k) out[i] += x[i + k * 256];",
            False,
        ),
        # Its own eight, four at a time.
        ("int* y = &x[8 * i]; *(int4*)y = make_int4(n, n, n, n); for (int k = 0; k < 4; ++k) out[i] += y[k];", False),
        ("x[i] = n; out[i] = x[blockDim.x - 1];", True),
        ("x[i] = n; out[i] = x[i];", False),
        # One thread looks at what all have written, or at its own.
        ("x[i] = n; if (i == 0) { for (int k = 0; k < 9; ++k) out[k] = x[k]; }", True),
        ("x[i] = n; if (i == 0) out[0] = x[0];", False),
        ("if (i == 0) x[0] = 0; atomicAdd(&x[0], 1);", True),
        ("atomicAdd(&x[i], 1); out[i] = x[i];", False),
        # Before the loop's second iteration, which writes what was read, all have waited.
        (
            "int a = 0, b = 64; out[i] = x[a + (i ^ 1)];"
            "for (int k = 0; k < n; ++k) { x[b + i] = k; __syncthreads(); out[k] = x[b]; __syncthreads();"
            "int c = a; a = b; b = c; }",
            False,
        ),
        (
            "int a = 0, b = 64; out[i] = x[a + (i ^ 1)];"
            "for (int k = 0; k < n; ++k) { x[b + i] = k; int c = a; a = b; b = c; }",
            True,
        ),
        # In a block of 8 by 4 no two rows meet.
        ("int* y = x + 33 * i + 8 * threadIdx.y; int far = y[7]; y[0] = far; y[7] = n;", False),
        ("int* y = x + 33 * threadIdx.y + i; int far = y[7]; y[0] = far; y[7] = n;", True),
        # Another array in the same memory.
        ("int* y = x + 4096; y[i] = n; for (int k = 0; k < n; ++k) out[i] += x[k];", False),
        ("if (i == 0) x[0] = 0; __syncthreads(); atomicAdd(&x[0], 1);", False),
        # Of two remainders the one excludes the other, or reads what the other has written.
        ("if ((i + n) % 2 == 0) x[i] = n; if ((i + n) % 2 == 1) out[i] = x[i];", False),
        ("if ((i + n) % 2 == 0) x[i] = n; if ((i + n) % 2 == 1) out[i] = x[i + 1];", True),
        # Only the first thread looks at what it has set.
        ("if (i == 0) x[0] = n; __syncthreads(); out[i] = x[0]; __syncthreads(); if (i == 0 && x[0]) x[0] = 2;", False),
        ("if (i == 0) x[0] = n; __syncthreads(); out[i] = x[0]; __syncthreads(); if (x[0] && i == 0) x[0] = 2;", True),
        ("if (i != 0 || x[0]) out[i] = 1; if (i == 0) x[0] = 2;", False),
        # Threads leave the loop at different times, so a function in it waits only if its name says so.
        ("x[i] = n; for (int k = i; k < n; k += blockDim.x) out[k] = larger(k, x[i + 1]);", True),
        ("x[i] = n; for (int k = i; k < n; k += blockDim.x) out[k] = ScanBlock(k) + x[i + 1];", False),
        ("int* y = SharedMemory<int>(); y[i] = n; out[i] = y[i + 1];", True),
        ("int* y = SharedMemory<int>(); y[i] = n; __syncthreads(); out[i] = y[i + 1];", False),
        # Matrices that a warp reads at once.
        ("x[i] = n; wmma::load_matrix_sync(tile, x, 16);", True),
        ("x[i] = n; __syncthreads(); wmma::load_matrix_sync(tile, x, 16);", False),
        (
            'unsigned a; asm("{ cvta.to.shared.u64 a, %1; }" : "=r"(a) : "l"((void*)(&x[0] + 4 * i)));'
            'for (; n; --n) { asm("ldmatrix.sync.m8n8.x1 {%0}, [%1];" : "=r"(n) : "r"(a)); x[4 * i + 4] = n; }',
            True,
        ),
        # The same memory, as another type: all read its beginning, before the first thread overwrites it.
        ("T* y = (T*) x; U* z = (U*) x; out[i] = y[0]; z[i] = n; __syncthreads(); out[i] += z[0];", True),
        ("T* y = (T*) x; U* z = (U*) x; out[i] = y[0]; __syncthreads(); z[i] = n;", False),
        # Of two threads that are partners, one swaps.
        (
            "for (int q = 1; q < n; q *= 2) { int h = i ^ q; bool swap = h > i && x[i] > x[h];"
            "if (swap) { int t = x[i]; x[i] = x[h]; x[h] = t; } __syncthreads(); }",
            False,
        ),
        (
            "for (int q = 1; q < n; q *= 2) { int h = i ^ q; bool swap = x[i] > x[h];"
            "if (swap) { int t = x[i]; x[i] = x[h]; x[h] = t; } __syncthreads(); }",
            True,
        ),
        ("for (int k = 0; k < n; ++k) x[i - k] = k; for (int k = i; k < n; k += 32) out[k] = x[k + 1];", True),
        # A block is as wide as the steps.
        ("for (int k = i; k < n; k += 32) x[k] = k; for (int k = i; k < n; k += 32) out[k] = x[k];", False),
        # A structure in shared memory: one field is another thread's, the other is not.
        ("Own& s = reinterpret_cast<Own&>(x); if (i == 0) s.a = n; out[i] = s.a;", True),
        ("Own& s = reinterpret_cast<Own&>(x); if (i == 0) s.a = n; out[i] = s.b;", False),
    ],
)
def test_reads_of_values_written_by_another_thread(text: str, found: bool) -> None:
    kernel = "__global__ void k(int* out, int n) { __shared__ int x[9999]; int i = threadIdx.x; " + text + " }"
    assert ("shared_memory_without_barrier" in rules(kernel)) == found


@pytest.mark.parametrize(("width", "found"), [(128, False), (256, True)])
def test_a_barrier_below_a_limit_that_no_block_reaches_is_reached_by_all(width: int, found: bool) -> None:
    text = "__global__ void k(int* a) { if (threadIdx.x < 128) { a[threadIdx.x] = 1; __syncthreads(); } }\n"
    assert ("conditional_syncthreads" in rules(text + f"void run(int* a) {{ k<<<1, {width}>>>(a); }}")) == found


@pytest.mark.parametrize(
    ("condition", "launch", "found"),
    [
        ("blockIdx.x * blockDim.x + threadIdx.x < n", "<<<1, n>>>(a, n)", False),
        ("blockIdx.x * blockDim.x + threadIdx.x < n", "<<<2, n>>>(a, n)", True),
        ("blockIdx.x * blockDim.x + threadIdx.x < n", "<<<1, n>>>(a, m)", True),
        ("threadIdx.x < n", "<<<m, n>>>(a, n)", False),
        ("threadIdx.y < n", "<<<m, dim3(n)>>>(a, m)", False),
        ("threadIdx.y < n", "<<<m, dim3(1, 4)>>>(a, m)", True),
        ("threadIdx.y < n", "<<<m, block>>>(a, m)", True),
    ],
)
def test_a_barrier_below_a_limit_that_all_threads_of_a_launched_block_meet(
    condition: str, launch: str, found: bool
) -> None:
    text = f"__global__ void k(int* a, int n) {{ if ({condition}) {{ a[threadIdx.x] = 1; __syncthreads(); }} }}\n"
    assert ("conditional_syncthreads" in rules(text + f"void run(int* a, int n, int m) {{ k{launch}; }}")) == found


def test_a_reduction_in_memory_that_two_arrays_share() -> None:
    text = """
    __global__ void k(const float* x, int* least, int n) {
        extern __shared__ char memory[];
        float* value = (float*) memory;
        int* at = (int*)(memory + blockDim.x * sizeof(float));
        int i = threadIdx.x;
        value[i] = x[i]; at[i] = i;
        __syncthreads();
        for (int s = blockDim.x / 2; s > 0; s >>= 1) {
            if (i < s && value[i + s] < value[i]) { value[i] = value[i + s]; at[i] = at[i + s]; }
            __syncthreads();
        }
        if (i == 0) *least = at[0];
    }
    void run(const float* x, int* least, int n) { k<<<1, 256, 2048>>>(x, least, n); }
    """
    assert "shared_memory_without_barrier" not in rules(text)
    assert "shared_memory_without_barrier" in rules(text.replace("            __syncthreads();\n", ""))


def test_what_is_never_compiled_is_not_read() -> None:
    text = "__global__ void k(float* a, int n) {\n%s\nif (threadIdx.x < n) __syncthreads();\n%s\na[threadIdx.x] = 0; }"
    for around in (("#if 0", "#endif"), ("# if (0) // later", "#else"), ("#if 0\n#if 1\n#endif", "#elif n\n#endif")):
        assert rules(text % around) == []
    for around in (("#if 01", "#endif"), ("// #if 0", "// #endif"), ("#if 0\n#else", "#endif"), ("#if 0", "")):
        assert "conditional_syncthreads" in rules(text % around)


@pytest.mark.parametrize(("body", "found"), [("a[i] = 0;", False), ("a[i] += a[i + 1];", True), ("work(a);", True)])
def test_a_store_that_a_loop_repeats_is_no_divergence(body: str, found: bool) -> None:
    loop = "for (int i = threadIdx.x; i < n; i += 256)"
    text = f"__global__ void k(float* a, int n) {{ {loop} {{ if (i % 9 == 0) {{ %s }} }} }}"
    assert ("warp_divergence" in rules(text.replace("%s", body))) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # A tile whose size only the build knows, turned over.
        ("__shared__ int x[TILE][TILE]; x[j][i] = n; out[i] = x[i][j];", True),
        ("__shared__ int x[TILE][TILE]; x[j][i] = n; out[i] = x[j][i];", False),
        ("__shared__ int x[TILE][TILE]; x[j][i] = n; __syncthreads(); out[i] = x[i][j];", False),
        # Rows and columns by quotient and remainder.
        ("__shared__ int x[8][9]; x[i / 8][i % 8] = n; out[i] = x[i % 8][i / 8];", True),
        ("__shared__ int x[8][9]; x[i / 8][i % 8] = n; out[i] = x[i >> 3][i & 7];", False),
        # Its own four, read one by one, or those of another.
        ("__shared__ int x[999]; ((int4*)x)[i] = v; for (int k = 0; k < 4; ++k) out[i] += x[4 * i + k];", False),
        ("__shared__ int x[999]; ((int4*)x)[i] = v; for (int k = 0; k < 4; ++k) out[i] += x[k];", True),
        # Whoever writes does not read, or reads what nobody writes.
        ("__shared__ int x[999]; if (i < 32) x[i] = n; else out[i] = x[i - 32];", False),
        ("__shared__ int x[999]; if (i < 32) x[i] = n; if (i >= 32) out[i] = x[i - 32];", True),
        ("__shared__ int x[999]; if (i < 32) x[i] = n; if (i >= 32) out[i] = x[i];", False),
        ("__shared__ int x[999]; x[i] = n; out[i] = x[i + n];", False),
        # The first turn reads what was there before.
        ("__shared__ int x[999]; x[i] = n; for (int s = 1; s < n; s *= 2) { out[i] = x[2 * s * i]; }", True),
        ("__shared__ int x[999]; x[i] = n; for (int s = n; s > 0; s /= 2) { out[i] = x[s * i]; }", False),
    ],
)
def test_threads_are_tried_if_the_stride_is_unknown(text: str, found: bool) -> None:
    kernel = (
        "__global__ void k(int* out, int n, int4 v) { int i = threadIdx.x; "
        + ("int j = threadIdx.y; " if "TILE" in text else "")
        + text
        + " }"
    )
    assert ("shared_memory_without_barrier" in rules(kernel)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("__shared__ float x[16][16]; x[i % 16][i / 16] = n;", True),
        ("__shared__ float x[16][17]; x[i % 16][i / 16] = n;", False),
        ("__shared__ float x[32][32]; x[i % 32][(i / 32) ^ (i % 32)] = n;", False),
        ("__shared__ float x[32][32]; x[i & 31][i >> 5] = n;", True),
        # Of few threads.
        ("__shared__ float x[16][16]; if (i == 5) x[i % 16][i / 16] = n;", False),
        # All at one place, and what is not known.
        ("__shared__ float x[16][16]; x[n % 16][0] = x[i / 64][n];", False),
        ("__shared__ float x[16][16]; x[i % n][i / n] = n;", False),
    ],
)
def test_banks_are_counted_thread_by_thread(text: str, found: bool) -> None:
    kernel = "__global__ void k(int n) { int i = threadIdx.x; " + text + " }"
    assert ("possible_shared_memory_bank_conflict" in rules(kernel)) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__shared__ float x[1024]; x[threadIdx.x * 32] = 0;", "32 elements of 4 bytes apart, 32 of a warp"),
        ("extern __shared__ float x[]; x[threadIdx.x * n * 32] = 0;", "32*n elements of 4 bytes apart, at least 32 of"),
        ("__shared__ T x[1024]; x[threadIdx.x * 32] = 0;", "32 elements apart, at least 16 of a warp"),
    ],
)
def test_a_conflict_is_a_bound_where_the_distance_in_bytes_is_unknown(text: str, said: str) -> None:
    source = parse_cuda(f"template <class T> __global__ void k(int n) {{ {text} }}", "k.cu")
    (found,) = SOURCE_DETECTORS["possible_shared_memory_bank_conflict"](source)
    assert said in found.seen


@pytest.mark.parametrize(
    ("size", "launch", "found"),
    [
        ("T", "k<32><<<1, dim3(32, 8)>>>(0)", True),
        ("T + 1", "k<32><<<1, dim3(32, 8)>>>(0)", False),
        ("T", "k<16><<<1, dim3(16, 16)>>>(0)", True),
        ("T + 1", "k<16><<<1, dim3(16, 16)>>>(0)", False),
        # One of them has no conflict, the other has.
        ("T", "k<32><<<1, dim3(32, 8)>>>(0); k<33><<<1, dim3(33, 8)>>>(0)", True),
        ("T", "k<<<1, dim3(32, 8)>>>(0)", True),
    ],
)
def test_tile_width_comes_from_the_launch(size: str, launch: str, found: bool) -> None:
    text = (
        f"template <int T = 32> __global__ void k(float* a) {{ __shared__ float x[T][{size}];\n"
        "x[threadIdx.y][threadIdx.x] = a[threadIdx.x]; __syncthreads();\n"
        "a[threadIdx.x] = x[threadIdx.x][threadIdx.y]; }\n"
        f"void run() {{ {launch}; }}"
    )
    assert ("possible_shared_memory_bank_conflict" in rules(text)) == found


@pytest.mark.parametrize(
    ("macro", "text", "found"),
    [
        ("AT(i, j) tile[(i) * 32 + (j)]", "AT(0, i) = n; out[i] = AT(0, i + 1);", True),
        ("AT(i, j) tile[(i) * 32 + (j)]", "AT(0, i) = n; out[i] = AT(0, i);", False),
        ("FOUR(x) (reinterpret_cast<int4*>(&(x))[0])", "FOUR(tile[4 * i]) = v; out[i] = tile[4 * i + 4];", True),
        ("FOUR(x) (reinterpret_cast<int4*>(&(x))[0])", "FOUR(tile[4 * i]) = v; out[i] = tile[4 * i + 3];", False),
        # More than an expression may be a barrier, and so may what is defined twice.
        ("WAIT(x) do { x; } while (0)", "tile[i] = n; WAIT(n); out[i] = tile[i + 1];", False),
        ("WAIT(x) (x)\n#define WAIT(x) (x, wait())", "tile[i] = n; WAIT(n); out[i] = tile[i + 1];", False),
        ("WAIT(x) (__syncthreads(), x)", "tile[i] = n; WAIT(n); out[i] = tile[i + 1];", False),
        ("SUM(x, y) \\\n  ((x) + \\\n (y))", "tile[i] = n; out[i] = tile[SUM(i,\n 1)];", True),
    ],
)
def test_shared_memory_access_in_a_macro(macro: str, text: str, found: bool) -> None:
    kernel = f"#define {macro}\n__global__ void k(int* out, int n, int4 v) {{ __shared__ int tile[999];\n"
    source = parse_cuda(f"{kernel}int i = threadIdx.x; {text}\nout[n] = 0; }}", "k.cu")
    assert ("shared_memory_without_barrier" in {one.card.id for one in detect_cuda_defects(source).findings}) == found
    assert source.kernels[0].accesses[-1].step.line == kernel.count("\n") + text.count("\n") + 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("if (i < 4) { x[i] += 1; out[i] = x[i + 4]; }", False),
        ("if (i < 4) { x[i] += 1; out[i] = x[i + 2]; }", True),
        # A cast is no call.
        ("if (i == 0) x[0] = n; out[i] = (T)(n / (x[0] + 1));", True),
        ("if (i == 0) x[0] = n; out[i] = T(x[0]);", True),
        # The other arm is another thread's.
        ("if (n > i) x[i] = n; else foreign(); out[i] = x[i + 1];", True),
        ("if (n > 4) x[i] = n; else foreign(); foreign(); out[i] = x[i + 1];", False),
        # Where one thread is alone nobody waits for the others.
        ("if (i == 0) { x[0] = n; foreign(); } out[i] = x[0];", True),
        ("x[i] = n; if (i >= n) return; foreign(); out[i] = x[i + 1];", False),
        ("x[i] = n; for (int k = i; k < n; k += blockDim.x) out[k] = foreign(x[k + 1]);", True),
        # A parameter that is called, and what a lambda of the kernel may do.
        ("x[i] = op(n); out[i] = op(n) + x[i + 1];", True),
        ("auto f = [&]() { __syncthreads(); }; x[i] = n; f(); out[i] = x[i + 1];", False),
        ("auto f = [&](int a) { return a + 1; }; x[i] = n; out[i] = f(n) + x[i + 1];", True),
        ("x[i] = n; out[i] = R<T>::f(x[i + 1], n);", True),
        ("x[i] = n; R<T>::f(n); out[i] = x[i + 1];", False),
        # A constant of another file.
        ("x[i] = n; if (i < 32) for (int k = i % kWarpSize + WARP_SIZE; k < blockDim.x; k += 32) out[i] = x[k];", True),
    ],
)
def test_possible_barriers_in_called_functions(text: str, found: bool) -> None:
    kernel = (
        "template <typename T, class O> __global__ void k(T* out, int n, O op) { __shared__ T x[999]; "
        f"int i = threadIdx.x; {text} }}"
    )
    assert ("shared_memory_without_barrier" in rules(kernel)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # What only the build knows: a tile's size, and an element's.
        ("__shared__ float x[TILE][TILE]; x[j][i] = n; a[i] = x[i][j];", True),
        ("__shared__ float x[TILE][TILE + 1]; x[j][i] = n; a[i] = x[i][j];", False),
        ("__shared__ float x[TILE][TILE]; x[j][i] = n; a[i] = x[j][i];", False),
        ("__shared__ REAL x[32][32]; x[j][i] = n; a[i] = x[i][j];", True),
        ("__shared__ REAL x[32][33]; x[j][i] = n; a[i] = x[i][j];", False),
        ("__shared__ float x[TILE * 9]; x[i * n] = n; a[i] = x[i * n];", False),
    ],
)
def test_a_tile_of_a_size_that_only_the_build_knows(text: str, found: bool) -> None:
    kernel = "__global__ void k(float* a, int n) { int i = threadIdx.x; int j = threadIdx.y; " + text + " }"
    assert ("possible_shared_memory_bank_conflict" in rules(kernel)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # Whoever finds something tells all.
        ("if (a[i] > 3) x[0] = 1; out[i] = x[0];", True),
        ("if (n > 3) x[0] = 1; out[i] = x[0];", False),
        ("if (a[i] > 3) { x[0] = 1; out[i] = x[0]; }", False),
        # The sum that all have added to, and what each has its own of.
        ("if (i % 32 == 0) atomicAdd(&x[0], 1); out[i] = x[0];", True),
        ("for (int k = i; k < 99; k += blockDim.x) x[k] = 0; atomicAdd(&x[a[i]], 1);", True),
        ("for (int k = i; k < 99; k += blockDim.x) x[k] = 0; __syncthreads(); atomicAdd(&x[a[i]], 1);", False),
        ("while (x[0] < n) atomicAdd(&x[0], 1);", False),
        ("int slot = atomicAdd(&x[0], 1); if (a[slot] > n) x[0] = n;", False),
        # A variable that a loop sets again.
        ("for (int k = 0; k < n; ++k) { if (i == 0) s = a[k]; __syncthreads(); out[k] = s; __syncthreads(); }", False),
        ("for (int k = 0; k < n; ++k) { if (i == 0) s = a[k]; out[k] = s; __syncthreads(); }", True),
        ("if (i == 0) s = 0; do { __syncthreads(); out[i] = s; } while (s < n);", False),
        # Only the last turn's write is another's.
        ("for (int k = 0; k < 8; ++k) if (i < k) x[i] += x[k]; out[i] = x[0];", True),
        ("if (i < 512) x[i] += x[i + 512]; if (i < 256) x[i] += x[i + 256];", True),
    ],
)
def test_what_others_set_or_add_to(text: str, found: bool) -> None:
    kernel = (
        "__global__ void k(int* out, const int* a, int n) { __shared__ int x[1024]; __shared__ int s; "
        f"int i = threadIdx.x; {text} }}"
    )
    assert ("shared_memory_without_barrier" in rules(kernel)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # All four words of a thread, in one access.
        ("float s = x[4 * i]; for (int k = 1; k < 4; ++k) s += x[4 * i + k]; a[i] = s;", False),
        ("a[i] = x[4 * i];", True),
    ],
)
def test_bank_conflicts_of_vector_accesses(text: str, found: bool) -> None:
    kernel = "__global__ void k(float* a) { __shared__ float x[1024]; int i = threadIdx.x; " + text + " }"
    assert ("possible_shared_memory_bank_conflict" in rules(kernel)) == found


def races(body: str, before: str = "") -> bool:
    head = "__global__ void k(float* a, int r, int n) { __shared__ float s[4096]; int x = threadIdx.x; "
    return "shared_memory_without_barrier" in rules(f"{before}{head}{body} }}")


@pytest.mark.parametrize(
    ("index", "found"),
    [
        ("x > 0 ? x - 1 : 0", True),
        ("x < 0 ? x - 1 : x", False),
        ("max(x - 1, 0)", True),
        ("min(x, x + 1)", False),
        # Of both the launch alone decides.
        ("n ? x : x + 1", False),
        ("x % 2 ? x - 1 : x + 1", True),
    ],
)
def test_an_element_that_a_condition_chooses_is_each_threads_own_choice(index: str, found: bool) -> None:
    assert races(f"s[x] = a[x]; a[x] = s[{index}];") is found
    assert not races(f"s[x] = a[x]; __syncthreads(); a[x] = s[{index}];")
    name = f"int i; if ({index.partition(' ? ')[0]}) i = {index.partition(' ? ')[2].replace(' : ', '; else i = ')};"
    if "?" in index:
        assert races(f"s[x] = a[x]; {name} a[x] = s[i];") is found


_COPY = (
    "__device__ void copy(void* to, const void* from) { unsigned at = __cvta_generic_to_shared(to);\n"
    'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"(from)); }\n'
)


@pytest.mark.parametrize(
    ("copies", "waits", "found"),
    [
        ("__pipeline_memcpy_async(&s[x], &a[x], 4); __pipeline_commit();", "__pipeline_wait_prior(0);", True),
        (
            "copy(&s[x], &a[x]);",
            'asm volatile("cp.async.commit_group;"); asm volatile("cp.async.wait_group 0;");',
            True,
        ),
        ("copy(&s[x], &a[x]);", 'asm volatile("cp.async.wait_all;");', True),
        ("copy(&s[x], &a[x]);", 'asm volatile("cp.async.bulk.wait_group 0;");', False),
        (
            "auto p = cuda::make_pipeline(); p.producer_acquire(); cuda::memcpy_async(&s[x], &a[x], 4, p);",
            "p.producer_commit(); p.consumer_wait();",
            True,
        ),
        (
            "auto p = cuda::make_pipeline(block, &state); cuda::memcpy_async(&s[x], &a[x], 4, p);",
            "p.producer_commit(); p.consumer_wait();",
            False,
        ),
        ("cuda::memcpy_async(&s[x], &a[x], 4, bar);", "bar.arrive_and_wait();", False),
        ("cg::memcpy_async(block, s, a, 4096);", "cg::wait(block);", False),
    ],
)
def test_waiting_for_own_copies_does_not_wait_for_others(copies: str, waits: str, found: bool) -> None:
    assert races(f"{copies} {waits} a[x] = s[x + 1];", _COPY) is found
    assert not races(f"{copies} {waits} __syncthreads(); a[x] = s[x + 1];", _COPY)
    assert not races(f"{copies} {waits} a[x] = s[x];", _COPY)


def test_copies_of_several_elements_are_as_wide_as_they_are() -> None:
    copied = "__pipeline_memcpy_async(&s[4 * x], &a[4 * x], 16); __pipeline_wait_prior(0);"
    assert rules(f"__global__ void k(float* a) {{ __shared__ float s[1024]; int x = threadIdx.x; {copied} }}") == []
    assert races(f"{copied} a[x] = s[x];")
    assert not races(f"{copied} a[x] = s[4 * x + 3];")


@pytest.mark.parametrize(
    ("written", "loop", "read", "found"),
    [
        ("x + r", "for (int j = -r; j <= r; ++j)", "x + r + j", True),
        ("x + r", "for (int j = 0; j < 2 * r + 1; ++j)", "x + j", True),
        ("x + r / 2", "for (int j = 0; j < r; ++j)", "x + j", True),
        ("threadIdx.y * n + x + r", "for (int j = -r; j <= r; ++j)", "threadIdx.y * n + x + r + j", True),
        (
            "(threadIdx.y + r) * (blockDim.x + 2 * r) + x + r",
            "for (int i = -r; i <= r; ++i)\nfor (int j = -r; j <= r; ++j)",
            "(threadIdx.y + r + i) * (blockDim.x + 2 * r) + x + r + j",
            True,
        ),
        # Beyond all that threads have written, unless it is very little.
        ("x", "for (int j = 0; j < r; ++j)", "x + r + j", False),
        # Two parameters, of which nothing is known together.
        ("x + n", "for (int j = 0; j < r; ++j)", "x + j", False),
        ("x", "for (int j = 0; j < r; ++j)", "x + n + j", False),
    ],
)
def test_window_whose_width_is_a_parameter(written: str, loop: str, read: str, found: bool) -> None:
    body = f"float t = 0; {loop} t += s[{read}]; a[x] = t;"
    assert races(f"s[{written}] = a[x]; {body}") is found
    assert not races(f"s[{written}] = a[x]; __syncthreads(); {body}")


def test_an_array_of_a_type_that_is_not_known_begins_where_it_began_before() -> None:
    text = (
        "template <typename T> __global__ void k(char* a) { extern __shared__ char m[]; int x = threadIdx.x;\n"
        "V* s = reinterpret_cast<V*>(m + T::size); s[x] = V(); BETWEEN a[x] = s[x > 0 ? x - 1 : 0]; }"
    )
    assert "shared_memory_without_barrier" in rules(text.replace("BETWEEN", ""))
    assert "shared_memory_without_barrier" not in rules(text.replace("BETWEEN", "__syncthreads();"))


TILE_LOOP = """
    __shared__ float x[64];
    float sum = 0;
    for (int base = 0; base < n; base += 64) {
        x[threadIdx.x] = a[base + threadIdx.x];
        __syncthreads();
        for (int j = 0; j < 64; ++j) sum += x[j];
        BETWEEN
    }
    a[threadIdx.x] = sum;
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TILE_LOOP.replace("BETWEEN", ""), True),
        (TILE_LOOP.replace("BETWEEN", "__syncthreads();"), False),
        (TILE_LOOP.replace("BETWEEN", "wait_for_all();"), False),
        # What a thread overwrites was its own.
        (TILE_LOOP.replace("BETWEEN", "").replace("sum += x[j]", "sum += x[threadIdx.x]"), False),
        # Two halves in turn.
        (
            TILE_LOOP.replace("BETWEEN", "")
            .replace("x[64]", "x[2][64]")
            .replace("x[threadIdx.x]", "x[(base / 64) % 2][threadIdx.x]")
            .replace("x[j]", "x[(base / 64) % 2][j]"),
            False,
        ),
        # One variable for all.
        (
            "__shared__ int s; for (int t = 0; t < n; ++t) { if (threadIdx.x == 0) s = t; __syncthreads(); a[t] = s; }",
            True,
        ),
        (
            "__shared__ int s; for (int t = 0; t < n; ++t) { if (threadIdx.x == 0) s = t; __syncthreads(); a[t] = s; "
            "__syncthreads(); }",
            False,
        ),
        # Without a loop.
        (
            "__shared__ float x[65]; x[threadIdx.x] = a[0]; __syncthreads(); float next = x[threadIdx.x + 1]; "
            "x[threadIdx.x] = next; __syncthreads(); a[0] = x[5];",
            True,
        ),
        (
            "__shared__ float x[65]; x[threadIdx.x] = a[0]; __syncthreads(); float next = x[threadIdx.x + 1]; "
            "__syncthreads(); x[threadIdx.x] = next; __syncthreads(); a[0] = x[5];",
            False,
        ),
        # A sum by halves reads what no thread of the turn writes.
        (
            "__shared__ float x[64]; x[threadIdx.x] = a[threadIdx.x]; __syncthreads(); for (int s = 32; s > 0; s /= 2) "
            "{ if (threadIdx.x < s) x[threadIdx.x] += x[threadIdx.x + s]; __syncthreads(); } a[0] = x[0];",
            False,
        ),
    ],
)
def test_writes_that_come_before_others_have_read(text: str, found: bool) -> None:
    kernel = f"__global__ void k(float* a, int n) {{ {text} }}\nvoid run(float* a, int n) {{ k<<<4, 64>>>(a, n); }}"
    assert ("shared_memory_without_barrier" in rules(kernel)) is found


def test_a_block_behind_an_unknown_macro_may_be_a_loop() -> None:
    body = "{ s[threadIdx.x] = a[0]; __syncthreads(); a[1] = s[127 - threadIdx.x]; __syncthreads(); }"
    kernel = "__global__ void k(float* a, int n) {{ __shared__ float s[128]; {} {} }}"
    assert "unnecessary_syncthreads" in rules(kernel.format("if (n)", body))
    assert "unnecessary_syncthreads" not in rules(kernel.format("FOR_EACH_BLOCK(b, n)", body))


@pytest.mark.parametrize(
    ("words", "found"), [("int", True), ("static constexpr int", False), ("constexpr int", False), ("const int", True)]
)
def test_a_table_that_all_threads_share_takes_no_registers(words: str, found: bool) -> None:
    body = f"{words} table[320] = {{1, 2}}; b[threadIdx.x] = table[a[threadIdx.x]];"
    text = f"__global__ void k(const int* a, int* b) {{ {body} }}"
    assert ("high_register_pressure" in rules(text)) is found


def test_an_unknown_function_that_whole_warps_call_may_be_a_barrier_of_the_warp() -> None:
    text = (
        "__global__ void k(const float* v, float* o, int n) { __shared__ float s[4]; "
        "int lane = threadIdx.x & 31, w = threadIdx.x >> 5; "
        "for (int r = w; r < n; r += 4) { if (lane == 0) s[w] = v[r]; BETWEEN o[r * 32 + lane] = s[w]; BETWEEN } }"
    )
    assert "shared_memory_without_barrier" not in rules(text.replace("BETWEEN", "utils::sync_warp();"))
    assert "shared_memory_without_barrier" in rules(text.replace("BETWEEN", ""))


@pytest.mark.parametrize(("index", "found"), [("2 * i", False), ("4 * i", True), ("32 * i", True), ("i", False)])
def test_elements_of_a_template_may_have_two_bytes(index: str, found: bool) -> None:
    text = (
        "template <typename T> __global__ void k(const T* v, T* o) { __shared__ T s[2048]; int i = threadIdx.x; "
        f"s[{index}] = v[i]; __syncthreads(); o[i] = s[2047 - i]; }}"
    )
    assert ("possible_shared_memory_bank_conflict" in rules(text)) is found


LOOPS = (
    ("for (int base = 0; base < n; base += 64) {", ""),
    ("int base = 0; while (base < n) {", "base += 64;"),
)
FILLS = (
    "x[threadIdx.x] = a[base + threadIdx.x];",
    "x[threadIdx.x] = base + threadIdx.x < n ? a[base + threadIdx.x] : T(0);",
    "for (int k = threadIdx.x; k < 64; k += blockDim.x) x[k] = a[base + k];",
)
READS = (
    "for (int j = 0; j < 64; ++j) s += x[j];",
    "s += x[63 - threadIdx.x];",
    "s += x[threadIdx.x ^ 1];",
    "const int here = min(64, n - base);\nfor (int j = 0; j < here; ++j) s += x[j];",
)


@pytest.mark.parametrize("alias", ["typedef float T;", "using T = float;"])
@pytest.mark.parametrize("loop", LOOPS, ids=["for", "while"])
@pytest.mark.parametrize("fill", FILLS, ids=["plain", "bounded", "looped"])
@pytest.mark.parametrize("read", READS, ids=["all", "mirrored", "swapped", "part"])
def test_tiles_that_are_filled_while_others_still_read(alias: str, loop: tuple[str, str], fill: str, read: str) -> None:
    head, tail = loop
    kernel = (
        f"{alias}\n__global__ void k(const T* a, T* o, int n) {{ __shared__ T x[64]; T s = 0;\n{head}\n{fill}\n"
        f"__syncthreads();\n{read}\n{tail} BARRIER }}\no[threadIdx.x] = s; }}\n"
        "void run(const float* a, float* o, int n) { k<<<4, 64>>>(a, o, n); }"
    )
    assert "shared_memory_without_barrier" in rules(kernel.replace("BARRIER", ""))
    assert "shared_memory_without_barrier" not in rules(kernel.replace("BARRIER", "__syncthreads();"))


def test_an_alias_of_two_meanings_stays() -> None:
    text = "{} struct T {{ float x; }}; template <typename T> __global__ void k(T* a) {{ a[threadIdx.x] = T(0); }}"
    (kernel,) = parse_cuda(text.format("typedef float T;"), "k.cu").kernels
    assert kernel.parameters[0].type == "T"


@pytest.mark.parametrize(("members", "found"), [("float x, y, z, w; float q[4];", True), ("float x[5];", False)])
def test_one_field_of_neighbouring_structures(members: str, found: bool) -> None:
    """Elements of 32 bytes are eight banks apart, those of 20 are five."""
    field = "x[0]" if "[5]" in members else "x"
    text = (
        f"struct P {{ {members} }};\n__global__ void k(float* o) {{ __shared__ P s[64]; s[threadIdx.x].{field} = 1;"
        f" __syncthreads(); o[threadIdx.x] = s[threadIdx.x].{field}; }}"
    )
    assert ("possible_shared_memory_bank_conflict" in rules(text)) is found


@pytest.mark.parametrize("kind", ["union", "struct"])
def test_a_tile_within_a_structure(kind: str) -> None:
    text = (
        f"__global__ void k(const float* g, float* o) {{ __shared__ {kind} {{ float t[32][33]; float s[1024]; }} m;"
        " m.t[threadIdx.x][threadIdx.y] = g[threadIdx.y * 32 + threadIdx.x]; BETWEEN"
        " o[threadIdx.y * 32 + threadIdx.x] = m.t[threadIdx.y][threadIdx.x]; }"
    )
    assert "shared_memory_without_barrier" in rules(text.replace("BETWEEN", ""))
    assert "shared_memory_without_barrier" not in rules(text.replace("BETWEEN", "__syncthreads();"))


@pytest.mark.parametrize(
    "text",
    [
        # A warp in step, through a volatile pointer.
        "volatile int* v = x; int t = v[i + 32] = n; v[i + 32] = t += v[i + 31]; x[i] = t;",
        # Each thread has read and writes what data choose, and all of them the same place.
        "for (int j = 0; j < n; ++j) { x[j] = a[j]; if (a[j] > 0) out[j] = x[j]; }",
    ],
)
def test_writes_that_are_no_races(text: str) -> None:
    kernel = f"__global__ void k(int* out, const int* a, int n) {{ __shared__ int x[64]; int i = threadIdx.x; {text} }}"
    assert "shared_memory_without_barrier" not in rules(kernel)


ADDRESS = 'asm("{ .reg .u64 q; cvta.to.shared.u64 q, %1; cvt.u32.u64 %0, q; }" : "=r"(d) : "l"(s));'


@pytest.mark.parametrize(("place", "found"), [("4 * t", []), ("4 * (255 - t)", ["shared_memory_without_barrier"])])
def test_the_address_of_shared_memory_is_in_bytes(place: str, found: list[str]) -> None:
    text = (
        "__global__ void k(float* a) { __shared__ float s[1024]; int t = threadIdx.x; unsigned d;\n"
        f'{ADDRESS}\nasm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(d + t * 16), "l"(a + 4 * t));\n'
        f'asm volatile("cp.async.wait_all;");\nfloat4 v = *(float4*)(s + {place}); a[t] = v.x; }}\n'
        "void f(float* a) { k<<<1, 256>>>(a); }"
    )
    assert rules(text) == found


@pytest.mark.parametrize(
    ("condition", "block", "found"),
    [
        ("t <= 127", "128", False),
        ("127 >= t", "128", False),
        ("t >= 0", "128", False),
        ("t <= 126", "128", True),
        ("t <= 127", "256", True),
        ("t < 32 && threadIdx.y < 8", "dim3(32, 8)", False),
        ("t < 32 && threadIdx.y < 8", "dim3(32, 9)", True),
        ("threadIdx.y * 32 + t < 256", "dim3(32, 8)", False),
        ("t / 64 == 0", "128", True),
    ],
)
def test_a_condition_that_all_threads_of_the_launched_blocks_meet(condition: str, block: str, found: bool) -> None:
    text = (
        f"__global__ void k(float* a) {{ int t = threadIdx.x; if ({condition}) {{ a[t] = 1; __syncthreads(); }} }}\n"
        f"void f(float* a) {{ k<<<1, {block}>>>(a); }}"
    )
    assert ("conditional_syncthreads" in rules(text)) == found


@pytest.mark.parametrize("call", ["transpose_tile(s)", "x.exchange(s)", "unknown(s)"])
def test_an_unknown_function_below_a_border_may_wait(call: str) -> None:
    text = (
        "__global__ void k(float* a, int n, Tile x) { __shared__ float s[256]; int t = threadIdx.x;\n"
        f"if (t < n) {{ s[t] = a[t]; {call}; a[t] = s[255 - t]; }} }}\n"
        "void f(float* a) { k<<<1, 256>>>(a, 256, {}); }"
    )
    assert "shared_memory_without_barrier" not in rules(text)


def test_an_assignment_right_of_a_joint_is_not_one_for_all_threads() -> None:
    text = (
        "__global__ void k(float* a) { __shared__ float s[256]; int t = threadIdx.x, j = t; s[t] = a[t];\n"
        "if (t > 300 && (j = t + 1) > 0) a[0] = 1; a[t] = s[j]; }\nvoid f(float* a) { k<<<1, 256>>>(a); }"
    )
    assert "shared_memory_without_barrier" not in rules(text)


def test_a_held_comparison_is_followed() -> None:
    body = "bool first = threadIdx.x == 0; if (first) s = a[0]; a[threadIdx.x] += s;"
    assert rules(f"__global__ void k(float* a) {{ __shared__ float s; {body} }}") == ["shared_memory_without_barrier"]


@pytest.mark.parametrize("launch", ["", "void f(float* a) { k<<<1, 128>>>(a); k<<<1, 256>>>(a); }"])
def test_a_warp_that_reads_all_of_a_block_does_not_show_its_size(launch: str) -> None:
    text = (
        "__global__ void k(float* a) { __shared__ float s[256]; int t = threadIdx.x; s[t] = a[t]; if (t < 32) {\n"
        f"float v = 0; for (int i = 0; i < 4; i++) v += s[t + i * 32]; a[t] = v; }} }}\n{launch}"
    )
    assert rules(text) == ["shared_memory_without_barrier"]


@pytest.mark.parametrize("name", ["data/*.bin", "http://x"])
def test_a_string_is_no_comment(name: str) -> None:
    text = (
        "__global__ void k(float* a) { if (threadIdx.x < 64) { a[threadIdx.x] = 1; __syncthreads(); } }\n"
        f'void f(float* a) {{ int b = 64; open("{name}"); if (a) b = 128; k<<<1, b>>>(a); }}'
    )
    assert "conditional_syncthreads" in rules(text)


@pytest.mark.parametrize(
    ("index", "found"), [("i * stride0 + j * stride1", []), ("i * stride0", ["uncoalesced_access"])]
)
def test_strides_in_bytes_for_each_dimension_are_any_layout(index: str, found: list[str]) -> None:
    text = (
        "__global__ void k(char* a, int n, long stride0, long stride1) { int i = threadIdx.x, j = blockIdx.x;\n"
        f"float* p = (float*)(a + {index}); if (i < n) *p *= 2; }}"
    )
    assert rules(text) == found
