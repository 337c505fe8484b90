"""Parse a CUDA file into a tree, after removing syntax that the grammar does not know, and measure the parsed part.

Attributes that may precede a function's name are blanked, byte for byte, so that lines and columns stay the same. Trees
are walked without recursion, since the nesting of an untrusted file has no limit.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from frx_graph.evidence.cuda.source import Coverage

_ATTRIBUTE = re.compile(
    rb"__(?<!\w__)(?:(?:(?P<bounds>launch_bounds)|cluster_dims|block_size|maxnreg|align)__\s*\("
    rb"|(?:grid_constant|forceinline|noinline|inline|tile_global)__\b)"
)
_MOST_ATTRIBUTE = 500
"""Limit on the bytes in an attribute's parentheses; a longer one is unterminated."""
_DEEPEST_ATTRIBUTE = 10
"""Limit on nested parentheses; real ones have three."""
_MOST_AROUND = 200
"""Limit on nodes visited around one; real code has a fifth."""
NO_CODE = frozenset(["comment", "string_content", "preproc_arg", "raw_string_content"])
"""Nodes in which words have no meaning."""
COMMENT_OR_STRING = r"//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?|\"(?:[^\"\\\n]++|\\.)*+\""
"""Pattern for text, without the parser: an unterminated comment goes to the end."""
_PARENTHESIS = re.compile(rb"[()]")
_SEPARATOR, _TEMPLATE_SEPARATOR = re.compile(r"[](){}[,]"), re.compile(r"[](){}<>[,]")


@dataclass(frozen=True, slots=True)
class Tree:
    """Prepared source. `text` is the file without attributes, and its headers behind it; `end` is where the file
    itself ends. `bounds` are the arguments of `__launch_bounds__`, by position."""

    text: bytes
    root: Node
    bounds: dict[int, str]
    end: int


def parse_tree(content: bytes, lines: int | None = None) -> Tree:
    """Return the tree of a file; errors in it are nodes. What comes behind the first `lines` lines are its headers."""
    text, bounds = _clear_attributes(content)
    headers = [] if lines is None else text.split(b"\n", lines)[lines:]
    end = len(text) - sum(map(len, headers))
    return Tree(text, Parser(load_cuda_language()).parse(text).root_node, bounds, end)


def measure_coverage(tree: Tree) -> Coverage:
    """Count the file's bytes in nodes that the grammar does not know; a missing token counts as one."""
    unparsed = 0
    waiting = [tree.root] if tree.root.has_error else []
    while waiting:
        node = waiting.pop()
        if node.start_byte >= tree.end:
            continue
        if node.is_error:
            unparsed += min(node.end_byte, tree.end) - node.start_byte
        elif node.is_missing:
            unparsed += 1
        else:
            waiting.extend(child for child in node.children if child.has_error or child.is_missing)
    return Coverage(tree.end, min(unparsed, tree.end))


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all nodes below it, in the file's order."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


def find_enclosing_nodes(root: Node, ranges: Iterable[tuple[int, int]]) -> Iterator[list[Node]]:
    """Yield, for each range of bytes in the file's order, the smallest node that contains it, with that node's
    ancestors.

    The children of a node are listed once. A separate search for each range would visit those of the root every time.
    """
    path = [(root, root.children)]
    for start, end in ranges:
        while len(path) > 1 and path[-1][0].end_byte < end:
            path.pop()
        while True:
            children = path[-1][1]
            at = bisect.bisect_left(children, end, key=attrgetter("end_byte"))
            if at == len(children) or children[at].start_byte > start:
                break
            path.append((children[at], children[at].children))
        yield [node for node, _ in path[: -_MOST_AROUND - 1 : -1]]


def find_nearest(nodes: Iterable[Node], *types: str) -> Node | None:
    """Return the first node of one of `types`."""
    return next((node for node in nodes if node.type in types), None)


def find_function_declarator(definition: Node) -> Node | None:
    """Return the node with a function's name and parameters."""
    node = definition.child_by_field_name("declarator")
    while node is not None and node.type != "function_declarator":
        node = node.child_by_field_name("declarator") or next(iter(node.named_children), None)
    return node


def list_parameters(definition: Node) -> list[Node]:
    """Return the parameters of a function."""
    declarator = find_function_declarator(definition)
    listed = declarator.child_by_field_name("parameters") if declarator is not None else None
    return [child for child in listed.named_children if "parameter" in child.type] if listed is not None else []


def split_arguments(text: str, *, template: bool = False) -> list[str]:
    """Split the arguments in a list; each may have commas in brackets. In those of a template, `<` is a bracket."""
    parts, depth, start = [], 0, 0
    for found in (_TEMPLATE_SEPARATOR if template else _SEPARATOR).finditer(text):
        if found[0] != ",":
            depth += 1 if found[0] in "([{<" else -1
        elif depth == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
    return [*parts, text[start:].strip()]


def get_text(text: bytes, node: Node | None) -> str:
    """Return the text of a node, on one line."""
    if node is None:
        return ""
    # `node.text` takes three times as long.
    return join_lines(text[node.start_byte : node.end_byte])


def join_lines(text: bytes) -> str:
    """Return a piece of a file with each run of blanks as one."""
    found = text.decode("utf-8", "replace")
    # Most pieces are a name.
    return found if found.isidentifier() else " ".join(found.split())


def get_line(node: Node) -> int:
    """Return the line, from 1."""
    return node.start_point[0] + 1


@functools.cache
def load_cuda_language() -> Language:
    """Return the grammar of CUDA."""
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
