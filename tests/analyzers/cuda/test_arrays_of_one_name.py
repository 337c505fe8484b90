"""Arrays of one name in several functions or blocks are several arrays, unless the launch sizes them."""

from __future__ import annotations

from frx_graph.analyzers.cuda.analysis import detect_cuda_defects
from frx_graph.evidence.cuda.parsing import parse_cuda

REDUCE = """
__device__ float {name}(float value) {{
    __shared__ float buffer[32];
    buffer[threadIdx.x] = value;
    __syncthreads();
    return buffer[0];
}}
"""
KERNEL = """
__global__ void k(float* out, float x) {{
    float a = {first}(x);
    float b = {second}(x);
    out[threadIdx.x] = a + b;
}}
"""


def find_races(text: str) -> list[str]:
    findings = detect_cuda_defects(parse_cuda(text, "k.cu")).findings
    return [one.seen for one in findings if one.card.id == "shared_memory_without_barrier"]


def test_two_functions_have_an_array_each() -> None:
    both = REDUCE.format(name="highest") + REDUCE.format(name="total")
    assert find_races(both + KERNEL.format(first="highest", second="total")) == []
    # One function has the same array in both calls: the second one overwrites what others still read.
    assert len(find_races(both + KERNEL.format(first="total", second="total"))) == 1


def test_two_blocks_have_an_array_each() -> None:
    block = "{{ {extern}__shared__ float s[{size}]; {work} }}"
    text = "__global__ void k(float* out) {{ {first} {second} }}"
    write, read = "s[threadIdx.x] = out[threadIdx.x];", "out[threadIdx.x] = s[threadIdx.x + 1];"
    own = [block.format(extern="", size=64, work=work) for work in (write, read)]
    assert find_races(text.format(first=own[0], second=own[1])) == []
    shared = [block.format(extern="extern ", size="", work=work) for work in (write, read)]
    assert len(find_races(text.format(first=shared[0], second=shared[1]))) == 1
