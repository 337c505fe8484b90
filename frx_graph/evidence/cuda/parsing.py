"""Read CUDA source: kernels and launches, despite syntax that the parser does not know."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from frx_graph.errors import EvidenceError
from frx_graph.evidence.cuda.assignments import Changes
from frx_graph.evidence.cuda.constants import find_file_constants, find_function_macros
from frx_graph.evidence.cuda.headers import Header, Headers, read_headers
from frx_graph.evidence.cuda.kernels import find_device_functions, find_file_arrays, find_kernels, read_kernel
from frx_graph.evidence.cuda.launches import read_launches
from frx_graph.evidence.cuda.macros import blank_disabled, expand_aliases, expand_macros
from frx_graph.evidence.cuda.source import CudaSource, IncludedHeader, group_launches
from frx_graph.evidence.cuda.state import Inlining
from frx_graph.evidence.cuda.structures import find_structures
from frx_graph.evidence.cuda.syntax import measure_coverage, parse_tree
from frx_graph.evidence.text_lines import read_whole_text
from frx_graph.support.garbage_collection import pause_gc

EXPECTED = "CUDA source, with a __global__ function or a <<<launch>>>"
_MARKS = ("__global__", "<<<")
"""Without either, the file has no results and need not be parsed."""
MOST_CHARACTERS = 64 << 20
"""The longest known source file, of generated kernels, has a tenth."""

_MOST_SEARCHED = 200_000_000
"""Limit on characters in which the parser searches for the end of unterminated comments. Each search goes to the end of
the file: 200 KB of them took 15 s."""
_MOST_STRAY = 2_000
"""Limit on characters that begin no token. At each the parser tries its whole grammar, which takes 75 µs, a thousand
times as long as any other character: 240 KB of `"\"` took 6 s. Programs have none."""
_RARE = bytes([*b"@`\\#", *range(9), *range(14, 32), *range(127, 256)])
"""All bytes that may be in one."""
_STRAY = re.compile(
    r'//[^\n]*|/\*.*?(?:\*/|\Z)|R"([^()\\\s]{0,16})\(.*?(?:\)\1"|\Z)|"(?:[^"\\\n]|\\.)*"?'
    r"|'(?:[^'\\\n]|\\.){0,10}'|\\\r?\n|^[ \t]*#(?:[^\n\\]|\\.)*|(?P<stray>[^\w\s!-/:-?\[\]^{-~]+|(?<=\S)#)",
    re.DOTALL | re.MULTILINE,
)
"""Comments, strings, characters and directives, which may contain anything, and characters that may appear nowhere
else."""
_NO_HEADERS = Headers()
_HIP = re.compile(r"^[ \t]*+#[ \t]*+include[ \t]*+[<\"](?:[^>\"\n]*/)?(?:hip|rocm)/", re.MULTILINE)


def read_cuda(path: Path) -> CudaSource:
    """Read the file at `path`, with its headers. Raises `EvidenceError` if it has neither kernels nor launches."""
    text = read_whole_text(path, EXPECTED, longest=MOST_CHARACTERS)
    return parse_cuda(text, str(path), read_headers(path, text) if "__global__" in text else _NO_HEADERS)


def parse_cuda(text: str, source: str, headers: Headers = _NO_HEADERS) -> CudaSource:
    """Parse the source in `text`. Raises `EvidenceError`, which names `source`, if there is no kernel and no launch."""
    nothing = EvidenceError(f"{source}: no kernel and no launch, expected {EXPECTED}")
    if not any(mark in text for mark in _MARKS):
        raise nothing
    pathological = _find_pathological_input(text)
    if pathological is not None:
        raise EvidenceError(f"{source}: {pathological}, expected {EXPECTED}")
    with pause_gc():
        found = _read(text, source, headers)
    if not found.kernels and not found.launches and not found.unread:
        raise nothing
    return found


def _find_pathological_input(text: str) -> str | None:
    """Return the content of `text` that would take minutes to parse; None if it can be parsed."""
    closed = text.rfind("*/") + 1
    never_closed = text.count("/*", closed)
    if never_closed * (len(text) - closed) > _MOST_SEARCHED:
        return f"{never_closed:,} comments begin and none of them ends"
    written = text.encode("utf-8", "replace")
    if len(written) - len(written.translate(None, _RARE)) <= _MOST_STRAY:
        return None
    stray = sum(found["stray"] is not None for found in _STRAY.finditer(text))
    return f"{stray:,} characters that CUDA does not know" if stray > _MOST_STRAY else None


def _read(text: str, source: str, headers: Headers) -> CudaSource:
    read = [one for one in headers.read if _find_pathological_input(one.text) is None]
    text, included = _append_headers(text, read)
    lines = included[0].line - 1 if included else None
    text = blank_disabled(text)
    tree = parse_tree(expand_aliases(expand_macros(text)).encode("utf-8", "replace"), lines)
    constants = find_file_constants(text)
    nodes, unread = find_kernels(tree)
    functions = find_device_functions(tree) if nodes else {}
    arrays = find_file_arrays(tree) if nodes else {}
    structures = find_structures(tree, constants) if nodes else {}
    macros = find_function_macros(text)
    searched: dict[int, Changes] = {}
    inlining = Inlining()
    launches = read_launches(tree, constants)
    by_name = group_launches(launches)
    kernels = tuple(
        read_kernel(tree, node, constants, functions, arrays, macros, structures, searched, inlining, by_name)
        for node in nodes
    )
    hip = _HIP.search(text) is not None
    coverage = measure_coverage(tree)
    unread_headers = (*headers.missing, *(one.path for one in headers.read if one not in read))
    return CudaSource(source, kernels, launches, tuple(unread), coverage, by_name, hip, tuple(included), unread_headers)


def _append_headers(text: str, headers: Sequence[Header]) -> tuple[str, list[IncludedHeader]]:
    """Return the text with its headers behind it, and the line at which each begins."""
    whole, included = text, []
    for header in headers:
        whole += "" if whole.endswith("\n") else "\n"
        included.append(IncludedHeader(header.path, whole.count("\n") + 1))
        whole += header.text
    return whole, included
