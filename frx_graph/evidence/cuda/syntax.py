"""A CUDA file as a tree, with what the grammar does not know taken out first, and how much of it was understood.

Attributes that may stand anywhere before a function's name are blanked, byte for byte, so that lines and columns stay.
Trees are walked without recursion: a stranger's file nests as deep as it likes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from frx_graph.evidence.cuda.source import Coverage

_ATTRIBUTE = re.compile(
    rb"__(?<!\w__)(?:(?:(?P<bounds>launch_bounds)|cluster_dims|block_size|maxnreg|align)__\s*\("
    rb"|(?:grid_constant|forceinline|noinline|inline|tile_global)__\b)"
)
_MOST_ATTRIBUTE = 500
"""Bytes in the parentheses of an attribute; what is longer has lost its end."""
_DEEPEST_ATTRIBUTE = 10
"""Parentheses within each other; real ones have three."""
_MOST_AROUND = 200
"""Nodes within each other that are looked at around one; real code has a fifth."""
NO_CODE = frozenset(["comment", "string_content", "preproc_arg", "raw_string_content"])
"""Nodes in which words mean nothing."""
_PARENTHESIS = re.compile(rb"[()]")


@dataclass(frozen=True, slots=True)
class Tree:
    """`text` is the file without attributes, `bounds` what stood in `__launch_bounds__`, by where it stood."""

    text: bytes
    root: Node
    bounds: dict[int, str]


def parse_tree(content: bytes) -> Tree:
    """The tree of a file; errors in it are nodes."""
    text, bounds = _clear_attributes(content)
    return Tree(text, Parser(load_cuda_language()).parse(text).root_node, bounds)


def measure_coverage(tree: Tree) -> Coverage:
    """Count the bytes in nodes that the grammar does not know; a missing token counts as one."""
    unparsed = 0
    waiting = [tree.root] if tree.root.has_error else []
    while waiting:
        node = waiting.pop()
        if node.is_error:
            unparsed += node.end_byte - node.start_byte
        elif node.is_missing:
            unparsed += 1
        else:
            waiting.extend(child for child in node.children if child.has_error or child.is_missing)
    return Coverage(len(tree.text), min(unparsed, len(tree.text)))


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, in the file's order."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


def find_enclosing_nodes(root: Node, ranges: Iterable[tuple[int, int]]) -> Iterator[list[Node]]:
    """Yield, for each range of bytes in the file's order, the smallest node that holds it and that node's ancestors.

    The children of a node are visited once. Looking each range up by itself would visit those of the root for every
    range.
    """
    path, waiting = [root], [iter(root.children)]
    ahead: list[Node | None] = [None]
    for start, end in ranges:
        while len(path) > 1 and path[-1].end_byte < end:
            path.pop(), waiting.pop(), ahead.pop()
        while True:
            child = ahead[-1]
            while child is None or child.end_byte < end or child.end_byte <= start:
                child = next(waiting[-1], None)
                if child is None:
                    break
            ahead[-1] = child
            if child is None or child.start_byte > start:
                break
            path.append(child)
            waiting.append(iter(child.children))
            ahead.append(None)
        yield path[: -_MOST_AROUND - 1 : -1]


def find_nearest(nodes: Iterable[Node], *types: str) -> Node | None:
    """The first of one of `types`."""
    return next((node for node in nodes if node.type in types), None)


def find_function_declarator(definition: Node) -> Node | None:
    """Return the node with a function's name and parameters."""
    node = definition.child_by_field_name("declarator")
    while node is not None and node.type != "function_declarator":
        node = node.child_by_field_name("declarator") or next(iter(node.named_children), None)
    return node


def get_text(text: bytes, node: Node | None) -> str:
    """Return the text of a node, on one line."""
    if node is None:
        return ""
    # `node.text` takes three times as long.
    return join_lines(text[node.start_byte : node.end_byte])


def join_lines(text: bytes) -> str:
    """A piece of a file, with each run of blanks as one."""
    found = text.decode("utf-8", "replace")
    # Most are a name.
    return found if found.isidentifier() else " ".join(found.split())


def get_line(node: Node) -> int:
    """From 1."""
    return node.start_point[0] + 1


@functools.cache
def load_cuda_language() -> Language:
    """The grammar of CUDA."""
    return Language(tree_sitter_cuda.language())


def _clear_attributes(content: bytes) -> tuple[bytes, dict[int, str]]:
    pieces, bounds, done = [], {}, 0
    for found in _ATTRIBUTE.finditer(content):
        if found.start() < done:
            continue
        end = found.end()
        if found[0].endswith(b"("):
            close = _find_closing(content, end)
            if close is None:
                continue
            if found["bounds"]:
                bounds[found.start()] = " ".join(content[end:close].decode("utf-8", "replace").split())
            end = close + 1
        blank = re.sub(rb"[^\n]", b" ", content[found.start() : end])
        pieces += [content[done : found.start()], blank]
        done = end
    return b"".join([*pieces, content[done:]]), bounds


def _find_closing(content: bytes, start: int) -> int | None:
    depth = 1
    for found in _PARENTHESIS.finditer(content, start, start + _MOST_ATTRIBUTE):
        depth += 1 if found[0] == b"(" else -1
        if depth == 0:
            return found.start()
        if depth > _DEEPEST_ATTRIBUTE:
            break
    return None
