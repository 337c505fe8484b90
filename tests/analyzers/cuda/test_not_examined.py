"""What the findings in CUDA source do not cover."""

from __future__ import annotations

from pathlib import Path

from frx_graph.analyzers.cuda.not_examined import list_not_examined
from frx_graph.evidence.cuda.parsing import parse_cuda, read_cuda

WHOLE = """
__global__ void scale(float* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] = 2.0f * a[i];
}
void launch(float* a, int n) { scale<<<(n + 127) / 128, 128>>>(a, n); }
"""


def listed(text: str) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {one.kind: (one.count, one.examples) for one in list_not_examined(parse_cuda(text, "kernels.cu"))}


def test_nothing_is_listed_for_a_file_that_is_judged_as_a_whole() -> None:
    assert listed(WHOLE) == {}


def test_kernels_that_the_file_does_not_launch() -> None:
    assert listed(WHOLE.partition("void launch")[0]) == {"Kernels that the file does not launch": (1, ("scale",))}


def test_functions_of_other_files() -> None:
    text = WHOLE.replace("2.0f * a[i]", "other::half(a, i)")
    assert listed(text) == {"Called functions that are not in the file or its headers": (1, ("other::half",))}
    # Functions that only compute hide no access.
    assert listed(WHOLE.replace("2.0f * a[i]", "sinf(a[i])")) == {}


def test_indices_read_from_memory() -> None:
    text = WHOLE.replace("float* a, int n) {\n", "float* a, const int* order, int n) {\n")
    found = listed(text.replace("2.0f * a[i]", "a[order[i]]"))
    assert found == {"Global accesses with an unknown index": (1, ("line 4: a[order[i]]",))}


def test_only_the_first_are_named() -> None:
    kernels = "".join(f"__global__ void k{number}() {{}}\n" for number in range(9))
    assert listed(kernels) == {"Kernels that the file does not launch": (9, ("k0", "k1", "k2", "k3", "k4"))}


def test_headers_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "kernels.cu"
    path.write_text('#include "missing.cuh"\n#include <cuda.h>\n' + WHOLE)
    found = list_not_examined(read_cuda(path))
    assert [(one.kind, one.examples) for one in found] == [("Headers that were not found", ("missing.cuh",))]
