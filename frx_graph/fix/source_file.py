"""A Python file, the places of all syntax nodes in bytes and lines, and edits of those bytes."""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import libcst as cst
from libcst.metadata import (
    ByteSpanPositionProvider,
    ExpressionContext,
    ExpressionContextProvider,
    MetadataWrapper,
    ParentNodeProvider,
)

from frx_graph.capture.call_site import CallSite
from frx_graph.instrumentation.script import Script, ignore_warnings, parse_script, read_script
from frx_graph.records import SourceEdit


class CannotFixError(Exception):
    """The source is not what a fixer needs; the text says how it differs."""


@dataclass(frozen=True)
class SourceFile:
    """A parsed file. Spans and edits count the bytes of the file, with its byte order mark, if any."""

    script: Script
    module: cst.Module
    spans: Mapping[cst.CSTNode, tuple[int, int]]
    parents: Mapping[cst.CSTNode, cst.CSTNode]
    contexts: Mapping[cst.CSTNode, ExpressionContext | None]
    """The use of each name: read, assigned or deleted. Keywords and attributes have none."""

    def is_variable(self, node: cst.Name) -> bool:
        """Return True for a name that is read or assigned; False for an attribute, a keyword, or a definition's own."""
        above = self.parents.get(node)
        attribute = isinstance(above, cst.Attribute) and above.attr is node
        return not attribute and self.contexts.get(node) is not None

    @property
    def path(self) -> Path:
        """The file's path."""
        return self.script.path

    @cached_property
    def _line_starts(self) -> Sequence[int]:
        starts = [0]
        for line in self.script.data.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return starts

    def get_line(self, offset: int) -> int:
        """Return the line, from 1, of a byte."""
        return min(bisect_right(self._line_starts, offset), len(self._line_starts))

    def get_start_line(self, node: cst.CSTNode) -> int:
        """Return the line on which a node begins."""
        return self.get_line(self.spans[node][0])

    def get_text(self, node: cst.CSTNode) -> str:
        """Return the source of a node, with its parentheses."""
        start, end = self.get_outer_span(node)
        return self.script.data[start:end].decode("utf-8")

    def get_outer_span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the span of a node and the parentheses around it."""
        start, end = self.spans[node]
        left, right = getattr(node, "lpar", ()), getattr(node, "rpar", ())
        if left and right:
            return self.spans[left[0]][0], self.spans[right[-1]][1]
        return start, end

    def find_function(self, site: CallSite) -> cst.FunctionDef:
        """Return the function that a call site names. Raises `CannotFixError` if the file has no such function there,
        as when the file has changed since it was imported."""
        best: cst.FunctionDef | None = None
        for node, (start, end) in self.spans.items():
            if not isinstance(node, cst.FunctionDef) or node.name.value != site.function:
                continue
            first = min([start, *(self.spans[decorator][0] for decorator in node.decorators)])
            inside = self.get_line(first) <= site.line <= self.get_line(end)
            if inside and (best is None or start > self.spans[best][0]):
                best = node
        if best is None:
            raise CannotFixError(f"line {site.line} is in no function that is called {site.function}")
        return best

    def list_calls(self, function: cst.FunctionDef, line: int) -> Iterator[cst.Call]:
        """Yield the calls of a function that Python reports on `line`: those whose method is named there, or that begin
        there."""
        for node in _walk_body(function):
            if isinstance(node, cst.Call) and line in self.list_lines(node):
                yield node

    def list_lines(self, call: cst.Call) -> Collection[int]:
        """Return the lines that Python may report for a call."""
        lines = {self.get_start_line(call)}
        if isinstance(call.func, cst.Attribute):
            lines.add(self.get_start_line(call.func.attr))
        return lines

    def get_statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine:
        """Return the simple statement that a node belongs to. Raises `CannotFixError` in the head of a compound one."""
        while not isinstance(node, cst.SimpleStatementLine):
            if isinstance(node, (cst.BaseCompoundStatement, cst.Module)) or node not in self.parents:
                raise CannotFixError(f"line {self.get_start_line(node)} is part of a compound statement")
            node = self.parents[node]
        return node

    def get_whole_lines(self, start: int, end: int) -> tuple[int, int]:
        """Return the span of the lines that a span lies on, with the end of the last."""
        after = self.get_line(end)
        last = self._line_starts[after] if after < len(self._line_starts) else len(self.script.data)
        return self._line_starts[self.get_line(start) - 1], last

    def make_edit(self, start: int, end: int, text: str) -> SourceEdit:
        """Return the replacement of the bytes from `start` up to `end`."""
        return SourceEdit(str(self.path), start, end, text, *self._get_position(start), *self._get_position(end))

    def _get_position(self, offset: int) -> tuple[int, int]:
        """Return line and column, from 1, in code points."""
        line = self.get_line(offset)
        return line, len(self.script.data[self._line_starts[line - 1] : offset].decode("utf-8", "ignore")) + 1

    def replace_node(self, node: cst.CSTNode, text: str) -> SourceEdit:
        """Return the replacement of a node, whose parentheses stay."""
        return self.make_edit(*self.spans[node], text)

    def replace_outer(self, node: cst.CSTNode, text: str) -> SourceEdit:
        """Return the replacement of a node with its parentheses."""
        return self.make_edit(*self.get_outer_span(node), text)

    def insert_before(self, statement: cst.CSTNode, lines: Sequence[str]) -> SourceEdit:
        """Return the insertion of lines in front of a statement, or of a decorated definition, at its indentation."""
        start = self.spans[statement][0]
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)) and statement.decorators:
            start = min(self.spans[decorator][0] for decorator in statement.decorators)
        line_start, _ = self.get_whole_lines(start, start)
        indent = self.script.data[line_start:start].decode("utf-8")
        if indent.strip():
            raise CannotFixError("a statement stands behind another on its line")
        return self.make_edit(line_start, line_start, "".join(f"{indent}{line}{self._line_end}" for line in lines))

    def insert_behind(self, function: cst.FunctionDef, line: str) -> SourceEdit:
        """Return the insertion of a line behind the last statement of a function's body."""
        if not isinstance(function.body, cst.IndentedBlock):
            raise CannotFixError("the body stands on the line of the head")
        first, last = function.body.body[0], function.body.body[-1]
        start, end = self.spans[first][0], self.spans[last][1]
        indent = self.script.data[self.get_whole_lines(start, start)[0] : start].decode("utf-8")
        _, after = self.get_whole_lines(end, end)
        if not self.script.data[:after].endswith(b"\n"):
            return self.make_edit(after, after, f"{self._line_end}{indent}{line}")
        return self.make_edit(after, after, f"{indent}{line}{self._line_end}")

    @property
    def _line_end(self) -> str:
        return self.module.default_newline

    def replace_methods(self, first: cst.Call, last: cst.Call, text: str) -> SourceEdit:
        """Return the replacement of the methods from `first` to `last`, which are called on each other."""
        assert isinstance(first.func, cst.Attribute)
        start, end = self.spans[first.func.dot][0], self.spans[last][1]
        receiver_end = self.get_outer_span(first.func.value)[1]
        # Line breaks in front of what goes do, too, unless a comment stands there.
        if not text and not self.script.data[receiver_end:start].replace(b"\\", b"").strip():
            start = receiver_end
        return self.make_edit(start, end, text)

    def remove_statement(self, statement: cst.BaseSmallStatement) -> SourceEdit:
        """Return the removal of a statement's line; `pass` replaces it where a block would be empty."""
        line = self.parents[statement]
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            raise CannotFixError("the line has several statements")
        block = self.parents[line]
        start, end = self.spans[statement]
        if not isinstance(block, (cst.IndentedBlock, cst.Module)):
            raise CannotFixError("the line is the body of a compound statement")
        if len(block.body) == 1:
            return self.make_edit(start, end, "pass")
        if line.trailing_whitespace.comment is not None:
            raise CannotFixError("a comment stands on the line that would go")
        return self.make_edit(*self.get_whole_lines(start, end), "")

    def get_next_statement(self, statement: cst.BaseSmallStatement) -> cst.SimpleStatementLine:
        """Return the line behind that of a statement. Raises `CannotFixError` unless each has one simple statement."""
        line = self.parents[statement]
        following = self.get_statement_after(line)
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        if following is None or len(following.body) != 1 or not alone:
            raise CannotFixError("no simple statement follows it")
        return following

    def get_statement_before(self, line: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """Return the simple statement in front of another in the same block; None if there is none."""
        return self._get_neighbour(line, -1)

    def get_statement_after(self, line: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """Return the simple statement behind another in the same block; None if there is none."""
        return self._get_neighbour(line, 1)

    def _get_neighbour(self, line: cst.CSTNode, step: int) -> cst.SimpleStatementLine | None:
        block = self.parents.get(line)
        statements = list(block.body) if isinstance(block, cst.IndentedBlock) else []
        at = next((number for number, one in enumerate(statements) if one is line), -step) + step
        found = statements[at] if 0 <= at < len(statements) else None
        return found if isinstance(found, cst.SimpleStatementLine) else None

    def find_owner(self, function: cst.FunctionDef) -> cst.ClassDef:
        """Return the class of a method. Raises `CannotFixError`."""
        owner: cst.CSTNode | None = function
        while owner is not None and not isinstance(owner, cst.ClassDef):
            owner = self.parents.get(owner)
        if owner is None:
            raise CannotFixError("the function is in no class")
        return owner

    def is_inside(self, node: cst.CSTNode, owner: cst.CSTNode) -> bool:
        """Return True if `node` stands within `owner`."""
        return self.spans[owner][0] <= self.spans[node][0] < self.spans[owner][1]

    def is_read(self, node: cst.Name) -> bool:
        """Return True where a name's value is read."""
        return self.contexts.get(node) is ExpressionContext.LOAD

    def get_operand(self, node: cst.BaseExpression) -> str:
        """Return the source of an expression so that it may stand in another, in parentheses if it needs them."""
        text = self.get_text(node)
        simple = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float)
        return text if node.lpar or isinstance(node, simple) else f"({text})"


def _walk_body(function: cst.FunctionDef) -> Iterator[cst.CSTNode]:
    """Yield the nodes of a function's body, without those of functions and classes within."""
    pending: list[cst.CSTNode] = [function.body]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            pending.extend(reversed(node.children))


def is_installed(file: str) -> bool:
    """Return True for a file of an installed package, which is never changed."""
    parts = Path(file).parts
    return "site-packages" in parts or "dist-packages" in parts


def read_source(path: Path) -> SourceFile:
    """Read and parse a file. Raises `ScriptError`."""
    script = read_script(path)
    module = parse_script(script)
    with ignore_warnings():
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        spans, parents = wrapper.resolve(ByteSpanPositionProvider), wrapper.resolve(ParentNodeProvider)
        contexts = wrapper.resolve(ExpressionContextProvider)
    mark = len(script.data) - len(script.text.encode("utf-8"))
    found = {node: (span.start + mark, span.start + span.length + mark) for node, span in spans.items()}
    return SourceFile(script, module, found, parents, contexts)


def apply_edits(data: bytes, edits: Collection[SourceEdit]) -> bytes:
    """Return a file's bytes with the edits, which do not overlap. Raises `CannotFixError` if the result is not Python,
    or has lost or changed a comment."""
    changed = data
    for edit in sorted(edits, key=lambda one: one.start, reverse=True):
        changed = changed[: edit.start] + edit.text.encode("utf-8") + changed[edit.end :]
    removed = b"".join(data[edit.start : edit.end] for edit in edits)
    try:
        with ignore_warnings():
            ast.parse(changed)
        if b"#" in removed and _list_comments(changed) != _list_comments(data):
            raise CannotFixError("a comment stands in what would be removed")
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        raise CannotFixError(f"the changed file would not be Python: {error}") from error
    return changed


def overlap(first: SourceEdit, second: SourceEdit) -> bool:
    """Return True if two edits change the same bytes, or insert at the same place."""
    if first.file != second.file:
        return False
    return (first.start < second.end and second.start < first.end) or first.start == second.start


def _list_comments(data: bytes) -> list[str]:
    tokens = tokenize.tokenize(io.BytesIO(data).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]
