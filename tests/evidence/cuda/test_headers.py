"""Headers beside a CUDA file: which are read, what is known from them, and what they must not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.analyze.cuda_source import analyze_cuda
from frx_graph.evidence.cuda.headers import read_headers
from frx_graph.evidence.cuda.source import CudaSource, Space

KERNEL = """#include "reduce.cuh"
__global__ void sum(const float* in, float* out) {
    __shared__ float part[WIDTH];
    part[threadIdx.x] = in[blockIdx.x * WIDTH + threadIdx.x];
    fold(part, threadIdx.x);
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
void launch(const float* in, float* out, int n) { sum<<<n / WIDTH, WIDTH>>>(in, out); }
"""
HEADER = """#pragma once
#define WIDTH 256
__device__ void fold(float* part, int i) {
    for (int half = WIDTH / 2; half > 0; half /= 2) {
        __syncthreads();
        if (i < half) part[i] += part[i + half];
    }
    __syncthreads();
}
"""
RACE = HEADER.replace("        __syncthreads();\n", "").replace("    __syncthreads();\n", "")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(folder: Path, name: str = "sum.cu", **files: str) -> CudaSource:
    write(folder, {"sum.cu": KERNEL, "reduce.cuh": HEADER} | files)
    return analyze_cuda(folder / name)[0]


def list_races(folder: Path) -> list[tuple[int, str]]:
    findings = analyze_cuda(folder / "sum.cu")[1].findings
    return [(one.line, one.seen) for one in findings if one.card.id == "shared_memory_without_barrier"]


def test_functions_and_constants_of_a_header_are_known(tmp_path: Path) -> None:
    source = read(tmp_path)
    (kernel,) = source.kernels
    assert [one.text for one in kernel.barriers] == ["__syncthreads()"] * 2
    assert kernel.arrays[0].bytes == 256 * 4
    assert not kernel.calls
    assert source.launches[0].block.sizes == (256, 1, 1)
    assert [Path(one.path).name for one in source.headers] == ["reduce.cuh"]
    assert source.unread_headers == ()
    assert list_races(tmp_path) == []


def test_a_defect_in_a_header_is_reported_at_the_kernel(tmp_path: Path) -> None:
    source = read(tmp_path, **{"reduce.cuh": RACE})
    assert source.kernels[0].barriers == ()
    ((line, seen),) = list_races(tmp_path)
    assert line == source.kernels[0].line == 2
    assert "line 5 of reduce.cuh" in seen


def test_what_is_said_of_the_file_itself_stays_the_same(tmp_path: Path) -> None:
    inner = "__global__ void other(float* a) { a[threadIdx.x] = 0; }\nvoid go(float* a) { other<<<1, 32>>>(a); }\n"
    alone = KERNEL.replace('#include "reduce.cuh"', "")
    write(tmp_path, {"alone.cu": alone})
    without = read(tmp_path, "alone.cu")
    source = read(tmp_path, **{"reduce.cuh": HEADER + inner + "this is not C++ )) {"})
    assert [one.name for one in source.kernels] == ["sum"]
    assert [(one.kernel, one.line) for one in source.launches] == [("sum", 8)]
    assert source.coverage.bytes == len(KERNEL)
    assert source.coverage.unparsed == without.coverage.unparsed == 0
    own = [one.step.line for one in source.kernels[0].accesses if one.space is Space.GLOBAL]
    assert own == [one.step.line for one in without.kernels[0].accesses if one.space is Space.GLOBAL] == [4, 6]


def test_headers_of_headers_are_read_once(tmp_path: Path) -> None:
    around = '#include "sum.cu"\n#include "width.h"\n#include "reduce.cuh"\n' + HEADER.replace(
        "#define WIDTH 256\n", ""
    )
    source = read(tmp_path, **{"reduce.cuh": around, "width.h": '#include "reduce.cuh"\n#define WIDTH 128\n'})
    assert [Path(one.path).name for one in source.headers] == ["reduce.cuh", "width.h"]
    assert source.launches[0].block.sizes == (128, 1, 1)


def test_headers_of_the_project_are_found_and_none_outside(tmp_path: Path) -> None:
    project = tmp_path / "project"
    outside = '#include "../../secret.h"\n#include "/etc/other.h"\n#include "notes.txt"\n'
    files = {
        "project/setup.py": "",
        "project/include/reduce.cuh": HEADER,
        "project/src/kernels/sum.cu": outside + KERNEL,
        "project/src/kernels/notes.txt": "#define A 1",
        "secret.h": "#define SECRET 1",
    }
    write(tmp_path, files)
    source, _ = analyze_cuda(project / "src/kernels/sum.cu")
    assert [Path(one.path).name for one in source.headers] == ["reduce.cuh"]
    assert source.unread_headers == ("../../secret.h", "/etc/other.h", "notes.txt")
    # Without a project, its own folder is all that a file may name.
    (project / "setup.py").unlink()
    assert analyze_cuda(project / "src/kernels/sum.cu")[0].headers == ()


def test_a_link_out_of_the_project_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path, {"secret.h": "#define SECRET 1", "project/Makefile": ""})
    (tmp_path / "project/secret.h").symlink_to(tmp_path / "secret.h")
    found = read_headers(tmp_path / "project/sum.cu", '#include "secret.h"\n')
    assert found.read == ()
    assert found.missing == ("secret.h",)


def test_hostile_headers_are_missing(tmp_path: Path) -> None:
    files = {"big.h": "/" * (2 << 20), "endless.h": "/* " * 200_000, "stray.h": '"\\"' * 5_000}
    includes = "".join(f'#include "{name}"\n' for name in (*files, "binary.h", "folder.h", "x\\0.h"))
    (tmp_path / "binary.h").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "folder.h").mkdir()
    source = read(tmp_path, **files, **{"sum.cu": includes + KERNEL})
    assert [Path(one.path).name for one in source.headers] == ["reduce.cuh"]
    assert {Path(one).name for one in source.unread_headers} == {*files, "binary.h", "folder.h", "x\\0.h"}


def test_a_thousand_headers_end(tmp_path: Path) -> None:
    files = {f"h{at}.h": f'#include "h{at + 1}.h"\n' for at in range(1_000)}
    write(tmp_path, files)
    found = read_headers(tmp_path / "k.cu", '#include "h0.h"\n')
    assert len(found.read) == 100
    assert found.missing == ("h100.h",)


OWN = """#include "other.cuh"
__device__ void put(float* s, int i, float v) { s[i] = v; }
__global__ void k(float* out) {
    __shared__ float s[64];
    put(s, threadIdx.x, out[threadIdx.x]);
    out[threadIdx.x] = s[63 - threadIdx.x];
}
void go(float* out) { k<<<1, 64>>>(out); }
"""


@pytest.mark.parametrize(
    "header",
    [
        "",
        "__device__ void put(float* s, int i, float v) { s[i] = v; }",
        "namespace other { __device__ void put(float* s, int i, float v) { __syncthreads(); } }",
        "struct Writer { __device__ void put(int i, float v) { __syncthreads(); } };",
        "using s = float;",
        "typedef float s;",
    ],
)
def test_a_header_does_not_hide_what_the_file_has(tmp_path: Path, header: str) -> None:
    write(tmp_path, {"sum.cu": OWN, "other.cuh": header})
    assert len(list_races(tmp_path)) == 1


def test_an_overload_in_a_header_leaves_the_call_open(tmp_path: Path) -> None:
    header = "__device__ void put(float* s, long i, float v) { __syncthreads(); }"
    write(tmp_path, {"sum.cu": OWN, "other.cuh": header})
    assert list_races(tmp_path) == []


@pytest.mark.parametrize("own", ["", "#define WIDTH 128\n"])
def test_a_default_of_a_header_counts_if_nothing_else_does(tmp_path: Path, own: str) -> None:
    guarded = "#ifndef WIDTH\n#define WIDTH 256\n#endif\n"
    files = {"sum.cu": own + KERNEL, "reduce.cuh": HEADER.replace("#define WIDTH 256\n", guarded)}
    assert read(tmp_path, **files).launches[0].block.sizes == (128 if own else 256, 1, 1)
