"""Kernels and launches are found whatever stands around them, and what is no CUDA source is refused."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frx_graph.errors import EvidenceError
from frx_graph.evidence.cuda.constants import find_file_constants, fold_constant
from frx_graph.evidence.cuda.parsing import parse_cuda, read_cuda
from frx_graph.evidence.cuda.source import Barrier, BarrierKind, CudaSource, Kernel, Space, Use, WarpOperation

SOURCES = Path(__file__).parent.parent.parent / "data" / "cuda"


def parse(text: str) -> CudaSource:
    return parse_cuda(text, "k.cu")


def kernel(body: str) -> Kernel:
    (found,) = parse(f"__global__ void k(float* a, int n) {{\n{body}\n}}").kernels
    return found


def test_signatures() -> None:
    (found,) = parse(
        "namespace a { struct S { template <typename T, int N = 4>\n"
        "static __global__ void k(const float* __restrict__ in, T *out, const int n, float (*rows)[N], T** p); }; }\n"
        "namespace a::b {\ntemplate <typename T, int N>\n"
        "__global__ void k(const float* __restrict__ in, T *out, const int n = 3, float* const* p = nullptr) { }\n}"
    ).kernels
    assert (found.name, found.line, found.template) == ("a::b::k", 5, ("typename T", "int N"))
    assert [(one.name, one.type, one.pointer, one.const, one.restrict) for one in found.parameters] == [
        ("in", "float", True, True, True),
        ("out", "T", True, False, False),
        ("n", "int", False, True, False),
        ("p", "float *", True, False, False),
    ]


@pytest.mark.parametrize(
    "head",
    [
        "__global__ void __launch_bounds__(256, 2) k(int* p)",
        "__global__ __launch_bounds__(256, 2) void k(int* p)",
        "__launch_bounds__(256, 2) __global__ void k(int* p)",
        "static __global__ void __launch_bounds__((T / 4), f(2)) k(int* p)",
        'extern "C" __global__ void\n__launch_bounds__(T/4, 2)\nk(int* p)',
        "template <int N> __launch_bounds__(256, 2) __global__ void k(int* p)",
        "__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(256, 2) k(int* p)",
    ],
)
def test_launch_bounds_are_found_at_any_position(head: str) -> None:
    (found,) = parse(f"#define T 1024\nint before;\n{head} {{ *p = 0; }}\n__global__ void other() {{}}").kernels[:1]
    assert found.name == "k"
    assert found.complete
    assert found.launch_bounds is not None
    assert found.launch_bounds.threads == 256
    assert found.launch_bounds.blocks == (None if "f(2)" in head else 2)


def test_launch_bounds_belong_to_the_kernel_that_follows() -> None:
    one, other = parse("__global__ void __launch_bounds__(64) a() {}\n__global__ void b() {}").kernels
    assert one.launch_bounds is not None
    assert other.launch_bounds is None


def test_launches() -> None:
    found = parse(
        "#define THREADS 128\nconst int SIDE = THREADS / 8;\n"
        "// not<<<1, 1>>>();\n"
        'void f(int n) { const char* s = "nor<<<1, 1>>>()";\n'
        "  dim3 block(SIDE, SIDE), grid((n + SIDE - 1) / SIDE, n);\n  int threads = 2 * THREADS;\n"
        "  k<float, 3><<<grid, block>>>(n);\n  ns::k<<<dim3(2, 3), threads, threads * sizeof(float), stream>>>(n);\n"
        "  (*p)<<<(n + 255) / 256, 256>>>(n);\n  k<<<ceil_div(n, 256), n>>>();\n}\n"
        "void g(int n) { dim3 block(32); if (n) block.x = 64; k<<<n, block>>>(); int t = 1; t += 3; k<<<n, t>>>(); }"
    ).launches
    assert [launch.name for launch in found] == ["k", "k", "(*p)", "k", "k", "k"]
    assert [launch.line for launch in found] == [7, 8, 9, 10, 12, 12]
    assert [launch.block.sizes for launch in found] == [
        (16, 16, 1),
        (256, 1, 1),
        (256, 1, 1),
        (None, None, None),
        (None, None, None),
        (None, None, None),
    ]
    assert [launch.grid.rounded_up for launch in found] == [True, False, True, True, False, False]
    assert found[1].grid.count == 6
    assert (found[1].shared_bytes, found[1].stream) == (1024, "stream")
    assert found[0].shared is None


def test_constants_that_depend_on_the_build_are_not_known() -> None:
    text = "#ifdef A\n#define N 3\n#else\n#define N 4\n#endif\n#define M (2 * 8) // eight\n"
    assert find_file_constants(f"{text}constexpr unsigned K = M + 1u;\n") == {"M": 16, "K": 17}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4 * (3 + 1) / 2", 8),
        ("1 << 10", 1024),
        ("0x10UL", 16),
        ("sizeof(float4) * 2", 32),
        ("0b101 + 0xFF", 260),
        ("8and 3", None),
        ("sizeof(int)and 3", None),
        ("sizeof(int)0", None),
        ("1_000", None),
        ("1 / 0", None),
        ("2 ** 9", None),
        ("1 << 1000", None),
        ("9" * 30, None),
        ("f(2)", None),
        ("1.5", None),
        ("()" * 90, None),
        ("(" * 150, None),
    ],
)
def test_folding(text: str, value: int | None) -> None:
    with warnings.catch_warnings():
        # Python's parser warns of some.
        warnings.simplefilter("error")
        assert fold_constant(text, {}) == value


def test_shared_memory() -> None:
    found = kernel(
        "__shared__ float tile[32][33]; extern __shared__ __align__(16) char dynamic[];\n"
        "__shared__ T other[N]; __shared__ int flag; float kept[8];"
    )
    assert [(one.name, one.space, one.sizes, one.bytes, one.dynamic) for one in found.arrays] == [
        ("tile", Space.SHARED, (32, 33), 4224, False),
        ("dynamic", Space.SHARED, (None,), None, True),
        ("other", Space.SHARED, (None,), None, False),
        ("flag", Space.SHARED, (), 4, False),
        ("kept", Space.LOCAL, (8,), 32, False),
    ]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("__syncthreads();", BarrierKind.BLOCK),
        ("__syncthreads_or(n);", BarrierKind.BLOCK),
        ("__syncwarp();", BarrierKind.WARP),
        ("auto b = cg::this_thread_block(); b.sync();", BarrierKind.BLOCK),
        ("cg::thread_block b = cg::this_thread_block(); cg::sync(b);", BarrierKind.BLOCK),
        ("cg::grid_group g = cg::this_grid(); g.sync();", BarrierKind.GRID),
        (
            "cg::thread_block_tile<16> t = cg::tiled_partition<16>(cg::this_thread_block()); t.sync();",
            BarrierKind.GROUP,
        ),
        ('asm volatile("bar.sync 0;" ::: "memory");', BarrierKind.BLOCK),
        ('asm volatile("mbarrier.try_wait.parity.shared.b64 p, [%0], %1;" : : "r"(n), "r"(n));', BarrierKind.ASYNC),
        ("__pipeline_wait_prior(0);", BarrierKind.ASYNC),
        ("bar.arrive_and_wait();", BarrierKind.ASYNC),
        ("helper();", BarrierKind.BLOCK),
    ],
)
def test_barriers(body: str, kind: BarrierKind) -> None:
    text = f"__device__ void helper() {{ __syncthreads(); }}\n__global__ void k(int n) {{ {body} }}"
    (barrier,) = parse(text).kernels[0].barriers
    assert barrier.kind is kind


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ("if (threadIdx.x < n) a[0] = 1;", {"thread", "bounds"}),
        ("if (threadIdx.x >= n) return; a[0] = 1;", {"thread", "bounds", "early"}),
        ("if (!(threadIdx.x < n)) return; a[0] = 1;", {"thread", "bounds", "early"}),
        ("if (threadIdx.x == 0) a[0] = 1;", {"thread", "lane", "single"}),
        ("if (threadIdx.x) return; a[0] = 1;", {"thread", "lane", "single", "early"}),
        ("if (!threadIdx.x && n) a[0] = 1;", {"thread", "lane", "single"}),
        ("if (threadIdx.x == 0 || n) a[0] = 1;", {"thread", "lane"}),
        ("if (threadIdx.x < 64) a[0] = 1;", {"thread", "bounds"}),
        ("if (threadIdx.x < 20) a[0] = 1;", {"thread", "lane", "bounds"}),
        ("if (threadIdx.x % 2 == 0) a[0] = 1;", {"thread", "lane", "modulo"}),
        ("if (threadIdx.x & 1) a[0] = 1;", {"thread", "lane", "modulo"}),
        ("if (threadIdx.x % 32 == 0) a[0] = 1;", {"thread", "lane", "single"}),
        ("if (threadIdx.x / 32 == 0) a[0] = 1;", {"thread"}),
        ("if (blockIdx.x < n) a[0] = 1;", {"bounds"}),
        ("if (n > 3) a[0] = 1;", set()),
        ("if (a[threadIdx.x] > 3) a[0] = 1;", {"bounds", "data"}),
        ("if (threadIdx.x < LIMIT) a[0] = 1;", {"bounds"}),
        ("for (int i = threadIdx.x; i < n; i += blockDim.x) a[0] = 1;", {"thread", "bounds"}),
    ],
)
def test_conditions(body: str, facts: set[str]) -> None:
    write = next(access for access in kernel(body).accesses if access.use is Use.WRITE)
    (found,) = write.step.conditions
    names = ("thread", "lane", "single", "bounds", "modulo", "data", "early")
    assert {name for name in names if getattr(found, name)} == facts


def test_conditions_end_with_their_block() -> None:
    found = kernel("for (int i = 0; i < n; ++i) { if (threadIdx.x > 3) continue; a[1] = 0; } a[2] = 0;")
    inside, outside = found.accesses
    assert len(inside.step.conditions) == 2
    assert (outside.step.conditions, outside.step.loops) == ((), ())


def test_atomics_and_warp_operations() -> None:
    found = kernel("atomicAdd(&a[n], 1.0f); int v = __shfl_down_sync(0xffffffff, n, 4); v = __shfl(v, 1);")
    assert [access.use for access in found.accesses] == [Use.ATOMIC]
    operations = [event for event in found.events if isinstance(event, WarpOperation)]
    assert [(one.name, one.mask, one.full) for one in operations] == [
        ("__shfl_down_sync", "0xffffffff", True),
        ("__shfl", None, False),
    ]


def test_errors_are_passed_over_and_counted() -> None:
    found = parse("int x = = 3;\n@@@@\n__global__ void k(int* p) { p[threadIdx.x] = 0; %% ; p[0] = 1; }\n")
    (one,) = found.kernels
    assert not one.complete
    assert len(one.accesses) == 2
    assert 0 < found.coverage.unparsed < found.coverage.bytes
    assert 0.0 < found.coverage.share < 1.0


def test_declarations_comments_and_macros_are_not_kernels() -> None:
    found = parse(
        "__global__ void declared(int* p);\n// __global__ void in_comment() {}\n"
        "#define KERNEL __global__ void\n__global__ void k() {}\n"
    )
    assert [one.name for one in found.kernels] == ["k"]
    assert found.unread == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"int main() { return 0; }\n", "no kernel and no launch"),
        (b"\x7fELF\2\1\1", "is a compiled program"),
        (b"__global__ void k() {}\0\n", "is a binary file"),
        (b"PK\x03\x04", "is a zip archive"),
    ],
)
def test_non_cuda_source_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "kernel.cu"
    path.write_bytes(content)
    with pytest.raises(EvidenceError) as refused:
        read_cuda(path)
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "kernel.cu"
    path.write_bytes("// Größe\r\n__global__ void k(int* p)\r\n{ p[0] = 0; }\r\n".encode(encoding))
    (found,) = read_cuda(path).kernels
    assert (found.name, found.line) == ("k", 2)


@pytest.mark.parametrize(
    ("before", "inside", "behind"),
    [
        ("a[0] = ", "(", ""),
        ("a[0] = 1", " + (1", ""),
        ("", "{", ""),
        ("", "if (n) ", "a[0] = 0;"),
        ("", "for (;;) {", ""),
        ("a[", "a[", ""),
        ("a[0] = ", "-", "1;"),
        ("a[0] = ", "n ? n : ", "1;"),
        ("a[0] = ", "f(", ""),
        ("a[0] = ", "*", "a;"),
        ("a[0] = n", ".x", ";"),
        ("if (n) ; ", "else if (n) ; ", ""),
        ("if (", "!", "n) a[0] = 0;"),
        ("a[0] = 1", " + 1", ";"),
        ("if (n", " && n", ") a[0] = 0;"),
        ("int ", "*", "p = a;"),
    ],
)
def test_depth_is_survived(before: str, inside: str, behind: str) -> None:
    found = parse(f"__global__ void k(float* a, int n) {{\n{before}{inside * 5_000}{behind}\n}}")
    assert [*(one.name for one in found.kernels), *found.unread] == ["k"]


def test_products_that_double_are_given_up() -> None:
    body = "int i = threadIdx.x + n + blockIdx.x;" + "i = i * i + n;" * 40 + "a[i] = 0;"
    (access,) = kernel(body).accesses
    assert access.stride.elements is None


def test_calls_that_multiply_are_given_up() -> None:
    functions = "__device__ int f0(int* p) { return p[0]; }\n" + "".join(
        f"__device__ int f{i}(int* p) {{ return {' + '.join([f'f{i - 1}(p)'] * 50)}; }}\n" for i in range(1, 6)
    )
    (found,) = parse(functions + "__global__ void k(int* p) { p[0] = f5(p); f5(p); }").kernels
    assert len(found.events) < 20_001


VALID = (SOURCES / "shared_memory_without_barrier_good.cu").read_text() + (
    SOURCES / "missing_obvious_bounds_guard_good.cu"
).read_text()
PUNCTUATION = ["{", "}", "(", ")", "[", "]", "<<<", ">>>", "<", ">", ";", "/*", '"', "\\\n", "*", "&", "->", "::", "\0"]
WORDS = ["__global__", "template <", "if (", "for (", "else ", "asm(", "case 1:", "threadIdx.x", "#define ", "é"]
PIECES = st.sampled_from([*PUNCTUATION, *WORDS])


@pytest.mark.integration
@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, len(VALID)), PIECES | st.text(max_size=4), st.integers(0, 60)), max_size=6))
def test_damage_is_refused_or_read(damage: list[tuple[int, str, int]]) -> None:
    text = VALID
    for at, piece, cut in damage:
        text = text[:at] + piece + text[at + cut :]
    try:
        found = parse(text)
    except EvidenceError as error:
        assert str(error)
    else:
        assert 0.0 <= found.coverage.share <= 1.0
        for one in found.kernels:
            assert all(isinstance(event.line, int) for event in (event.step for event in one.events))


def test_any_bytes_are_refused(tmp_path: Path) -> None:
    draw = random.Random(0)
    path = tmp_path / "bytes.cu"
    for _ in range(200):
        path.write_bytes(draw.randbytes(draw.randrange(300)))
        with pytest.raises(EvidenceError):
            read_cuda(path)


@pytest.mark.integration
def test_the_whole_zoo_is_understood() -> None:
    for path in sorted(SOURCES.glob("*.cu")):
        found = read_cuda(path)
        assert found.coverage.unparsed == 0, path.name
        assert not found.unread
        assert all(not isinstance(event, Barrier) or event.kind for one in found.kernels for event in one.events)
