"""Reads CUDA source: kernels, and launches, through whatever the parser does not know."""

from __future__ import annotations

from pathlib import Path

from frx_graph.errors import EvidenceError
from frx_graph.evidence.cuda.constants import file_constants, function_macros
from frx_graph.evidence.cuda.kernels import device_functions, file_arrays, kernel_nodes, read_kernel
from frx_graph.evidence.cuda.launches import read_launches
from frx_graph.evidence.cuda.source import CudaSource
from frx_graph.evidence.cuda.syntax import coverage, parse_tree
from frx_graph.evidence.text_lines import text_lines

EXPECTED = "CUDA source, with a __global__ function or a <<<launch>>>"
MOST_CHARACTERS = 64 << 20
"""The longest source file that is known, of generated kernels, has a tenth."""


def read_cuda(path: Path) -> CudaSource:
    """What the file at `path` holds. Raises `EvidenceError` for what has neither kernels nor launches."""
    with text_lines(path, EXPECTED, longest=MOST_CHARACTERS) as lines:
        size, kept = 0, []
        for line in lines:
            size += len(line)
            if size > MOST_CHARACTERS:
                raise EvidenceError(f"{path}: longer than {MOST_CHARACTERS:,} characters")
            kept.append(line)
    return parse_cuda("".join(kept), str(path))


def parse_cuda(text: str, source: str) -> CudaSource:
    """What stands in `text`. Raises `EvidenceError`, which names `source`, if there is no kernel and no launch."""
    content = text.encode("utf-8", "replace")
    tree = parse_tree(content)
    constants = file_constants(text)
    nodes, unread = kernel_nodes(tree)
    functions = device_functions(tree) if nodes else {}
    arrays = file_arrays(tree) if nodes else {}
    macros = function_macros(text)
    kernels = tuple(read_kernel(tree, node, constants, functions, arrays, macros) for node in nodes)
    launches = read_launches(tree, constants)
    if not kernels and not launches and not unread:
        raise EvidenceError(f"{source}: no kernel and no launch, expected {EXPECTED}")
    return CudaSource(source, kernels, launches, tuple(unread), coverage(tree))
