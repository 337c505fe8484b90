"""CUDA sources for tests, compiled by the real nvcc, and a CUDA runtime for machines without a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from frx_graph.measure.nvcc import find_nvcc

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="there is no nvcc")
STUB = Path(__file__).parent.parent / "tests" / "data" / "cuda" / "stub_cudart.cpp"

HOST = """#include <cstdio>
int main() { std::printf("sum 3.0\\n"); return 0; }
"""
LAUNCHES = """#include <cstdio>
__global__ void kernel(float* p) { p[threadIdx.x] = 1.0f; }
int main() {
  float* p;
  if (cudaMalloc(&p, 4096)) return 3;
  for (int i = 0; i < LAUNCHED; ++i) kernel<<<BLOCKS, 32>>>(p);
  if (cudaDeviceSynchronize()) return 4;
  std::printf("sum 3.0\\n");
  LAST;
  return 0;
}
"""
NO_MAIN = "__global__ void kernel(float* p) { p[threadIdx.x] = 1.0f; }\n"


def source(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def launching(path: Path, *, blocks: int, launched: int = 5, last: str = "") -> Path:
    """A program that launches a kernel of so many blocks so many times, and does `last` at the end."""
    return source(path, f"#define BLOCKS {blocks}\n#define LAUNCHED {launched}\n#define LAST {last}\n{LAUNCHES}")


def stub_runtime(folder: Path) -> Path:
    """`folder`, with the stub in it, called as nvcc's shared runtime is. Skips without a C++ compiler, and where the
    toolkit is older than the names that programs of CUDA 13 call."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    nvcc = find_nvcc()
    assert nvcc is not None
    told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    if "release 13." not in told:
        pytest.skip("the stub has the names of CUDA 13")
    names = folder / "names.map"
    names.write_text("libcudart.so.13 { global: *; };\n")
    library = "-Wl,-soname,libcudart.so.13", f"-Wl,--version-script={names}", "-o", str(folder / "libcudart.so.13")
    subprocess.run([compiler, "-shared", "-fPIC", *library, str(STUB)], check=True)
    return folder
