"""Reads CUDA source: kernels, and launches, through whatever the parser does not know."""

from __future__ import annotations

from pathlib import Path

from frx_graph.errors import EvidenceError
from frx_graph.evidence.cuda.assignments import Changes
from frx_graph.evidence.cuda.constants import file_constants, function_macros
from frx_graph.evidence.cuda.endless import endless
from frx_graph.evidence.cuda.kernels import device_functions, file_arrays, kernel_nodes, read_kernel
from frx_graph.evidence.cuda.launches import read_launches
from frx_graph.evidence.cuda.macros import without_macros
from frx_graph.evidence.cuda.source import CudaSource, launches_by_name
from frx_graph.evidence.cuda.state import Inlining
from frx_graph.evidence.cuda.syntax import coverage, parse_tree
from frx_graph.evidence.text_lines import whole_text
from frx_graph.support.gc_paused import uncollected

EXPECTED = "CUDA source, with a __global__ function or a <<<launch>>>"
_MARKS = ("__global__", "<<<")
"""Without either there is nothing to be found, which need not be parsed."""
MOST_CHARACTERS = 64 << 20
"""The longest source file that is known, of generated kernels, has a tenth."""


def read_cuda(path: Path) -> CudaSource:
    """What the file at `path` holds. Raises `EvidenceError` for what has neither kernels nor launches."""
    return parse_cuda(whole_text(path, EXPECTED, longest=MOST_CHARACTERS), str(path))


def parse_cuda(text: str, source: str) -> CudaSource:
    """What stands in `text`. Raises `EvidenceError`, which names `source`, if there is no kernel and no launch."""
    nothing = EvidenceError(f"{source}: no kernel and no launch, expected {EXPECTED}")
    if not any(mark in text for mark in _MARKS):
        raise nothing
    much = endless(text)
    if much is not None:
        raise EvidenceError(f"{source}: {much}, expected {EXPECTED}")
    with uncollected():
        found = _read(text, source)
    if not found.kernels and not found.launches and not found.unread:
        raise nothing
    return found


def _read(text: str, source: str) -> CudaSource:
    tree = parse_tree(without_macros(text).encode("utf-8", "replace"))
    constants = file_constants(text)
    nodes, unread = kernel_nodes(tree)
    functions = device_functions(tree) if nodes else {}
    arrays = file_arrays(tree) if nodes else {}
    macros = function_macros(text)
    searched: dict[int, Changes] = {}
    inlining = Inlining()
    launches = read_launches(tree, constants)
    by_name = launches_by_name(launches)
    kernels = tuple(
        read_kernel(tree, node, constants, functions, arrays, macros, searched, inlining, by_name) for node in nodes
    )
    return CudaSource(source, kernels, launches, tuple(unread), coverage(tree))
