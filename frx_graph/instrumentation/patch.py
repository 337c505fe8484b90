"""Insert into a script the lines that record its run, and remove them again, byte for byte.

Every inserted line ends with `MARK`, which identifies it later; the rest stays unchanged. The body of each training
loop goes into a `with`, which preserves the meaning of `continue`, `break`, `return`, `yield` and `await`. So does each
statement in it that is one whole part of a step. The iterable of batches goes into a call that records the waits for
them.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper

from frx_graph.errors import ScriptError
from frx_graph.instrumentation.script import Script, ignore_warnings, parse_script
from frx_graph.instrumentation.training_loop import (
    CALLBACKS,
    LoopsFound,
    TrainingLoop,
    find_framework,
    find_training_loops,
    get_wrapping_call,
    list_imported_packages,
)
from frx_graph.instrumentation.training_step import name_phase

MARK = "# frx init --patch"
_BY_HAND = "instrument it by hand: with frx_graph.step_context(step=..., batch=..., model=...):"
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_PACKAGE = "frx_graph"
_TIMED = cst.Attribute(value=cst.Name(_PACKAGE), attr=cst.Name("instrument_dataloader"))
_NO_SPACE = cst.SimpleWhitespace("")
_BEFORE_MARK = cst.SimpleWhitespace("  ")
_Statement = cst.BaseStatement | cst.SimpleStatementLine
_Body = TypeVar("_Body", cst.IndentedBlock, cst.Module)


@dataclass(frozen=True, slots=True)
class Patch:
    """A script's new text, and the loops that it records."""

    text: str
    found: LoopsFound


def patch(script: Script) -> Patch | None:
    """Return the script with its run recorded, or None if it imports frx_graph already. Raises `ScriptError` if no loop
    trains or can be wrapped, or if the insertion could not be removed again."""
    module = parse_script(script)
    if is_instrumented(module):
        return None
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    found = find_training_loops(wrapper)
    framework = find_framework(module)
    if not found.loops and not found.left and framework is not None:
        raise ScriptError(
            f"{script.path}: the loop is that of {framework}",
            f"give its Trainer callbacks=[FrxCallback()], of {CALLBACKS[framework]}",
        )
    if not found.loops:
        first = f", line {found.left[0].line}: {found.left[0].reason}" if found.left else ": no loop in it trains"
        raise ScriptError(f"{script.path}{first}", _BY_HAND)
    for loop in found.loops:
        if not isinstance(loop.node.body, cst.IndentedBlock):
            raise ScriptError(f"{script.path}, line {loop.line}: the loop's body is on the line of `for`", _BY_HAND)
    names = {name.value for name in m.findall(module, m.Name()) if isinstance(name, cst.Name)}
    if _PACKAGE in names:
        raise ScriptError(f"{script.path} uses the name {_PACKAGE} for something else", _BY_HAND)
    try:
        text = _insert_calls(script, module, found, parts=True)
    except ScriptError:
        # A comment further in than such a statement would become a part of the inserted block.
        text = _insert_calls(script, module, found, parts=False)
    return Patch(text, found)


def _insert_calls(script: Script, module: cst.Module, found: LoopsFound, *, parts: bool) -> str:
    """Return the script's new text, with its parts of steps recorded if `parts`. Raises `ScriptError` if the insertion
    could not be removed again."""
    loops = {loop.node: loop for loop in found.loops}
    wrapped = module.visit(_LoopWrapper(loops, module.config_for_parsing, parts))
    assert isinstance(wrapped, cst.Module)
    job_name = _PLAIN.sub("-", script.path.stem).strip("-") or "training"
    lines = [f"import {_PACKAGE}", f"{_PACKAGE}.init(job_name={json.dumps(job_name)})"]
    inserted = [_parse_line(f"{line}  {MARK}", module.config_for_parsing) for line in lines]
    at = _find_insertion_index(module, found.loops[0].node)
    text = wrapped.with_changes(body=(*wrapped.body[:at], *inserted, *wrapped.body[at:])).code + script.blank_end
    _check(script, text)
    return text


def remove_patch(script: Script) -> str | None:
    """Return the script without the lines of `patch`, or None if it has none. Raises `ScriptError` if removing them
    would leave invalid Python."""
    module = parse_script(script)
    taken = _PatchRemover()
    try:
        text = cst.ensure_type(module.visit(taken), cst.Module).code + script.blank_end
    except RecursionError as error:
        raise ScriptError("the script is nested too deeply", _BY_HAND) from error
    if not taken.lines:
        return None
    try:
        with ignore_warnings():
            ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise ScriptError(
            f"{script.path}: removing the lines marked {MARK!r} would leave invalid Python", "remove them by hand"
        ) from error
    return text


def is_instrumented(module: cst.Module) -> bool:
    """Return True if the script imports frx_graph."""
    return _PACKAGE in list_imported_packages(module)


def _check(script: Script, text: str) -> None:
    """Raise `ScriptError` unless the insertion can be removed to the byte, and the rest is still Python."""
    patched = Script(script.path, script.encode(text), text)
    try:
        with ignore_warnings():
            compile(text, str(script.path), "exec", dont_inherit=True)
        undone = remove_patch(patched)
    except (ScriptError, SyntaxError, ValueError, RecursionError) as error:
        raise ScriptError(f"{script.path} cannot be changed so that it runs: {error}", _BY_HAND) from error
    if undone != script.text:
        raise ScriptError(f"{script.path} cannot be changed so that it can be undone", _BY_HAND)


def _parse_line(text: str, config: cst.PartialParserConfig) -> cst.BaseStatement:
    newline = config.default_newline if isinstance(config.default_newline, str) else "\n"
    statement = cst.parse_statement(text.replace("\n", newline) + newline, config=config)
    assert isinstance(statement, cst.BaseStatement)
    return statement


def _find_insertion_index(module: cst.Module, loop: cst.For) -> int:
    """Return the index after the docstring and the last top-level import before the first loop."""
    at = 1 if module.get_docstring(clean=False) is not None else 0
    for index, statement in enumerate(module.body):
        if m.findall(statement, m.For()) and any(node is loop for node in m.findall(statement, m.For())):
            break
        if isinstance(statement, cst.SimpleStatementLine) and any(
            isinstance(small, (cst.Import, cst.ImportFrom)) for small in statement.body
        ):
            at = index + 1
    return at


@dataclass(slots=True)
class _LoopWrapper(cst.CSTTransformer):
    """Puts the bodies of loops into a `with`, and the statements in them that are one part of a step."""

    loops: dict[cst.For, TrainingLoop]
    config: cst.PartialParserConfig
    parts: bool
    around: list[TrainingLoop | None] = field(default_factory=lambda: [None])
    """The loop whose step each enclosing block belongs to, outermost first. A function runs elsewhere: None."""

    def visit_For_body(self, node: cst.For) -> None:  # noqa: N802
        self.around.append(self.loops.get(node, self.around[-1]))

    def leave_For_body(self, node: cst.For) -> None:  # noqa: ARG002, N802
        self.around.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: ARG002, N802
        self.around.append(None)

    def leave_FunctionDef(  # noqa: N802
        self,
        original_node: cst.FunctionDef,  # noqa: ARG002
        updated_node: cst.FunctionDef,
    ) -> cst.FunctionDef:
        self.around.pop()
        return updated_node

    def leave_SimpleStatementLine(  # noqa: N802
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement:
        loop = self.around[-1]
        phase = name_phase(original_node, loop.model) if loop is not None and self.parts else None
        if phase is None:
            return updated_node
        found = self._parse_with(f'{_PACKAGE}.span("{phase}")')
        body = found.body.with_changes(body=[updated_node.with_changes(leading_lines=())])
        return found.with_changes(leading_lines=updated_node.leading_lines, body=body)

    def _parse_with(self, manager: str) -> cst.With:
        return cst.ensure_type(_parse_line(f"with {manager}:  {MARK}\n    pass", self.config), cst.With)

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For:  # noqa: N802
        loop = self.loops.get(original_node)
        if loop is None:
            return updated_node
        body = updated_node.body
        assert isinstance(body, cst.IndentedBlock)
        given = {"step": loop.step, "batch": loop.batch, "model": loop.model}
        arguments = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        statement = self._parse_with(f"{_PACKAGE}.step_context({arguments})")
        header = cst.ensure_type(statement.body, cst.IndentedBlock).header
        guards = list(itertools.takewhile(_is_guard, body.body))
        inner = cst.IndentedBlock(body=body.body[len(guards) :], header=header, indent=body.indent, footer=body.footer)
        head = body.header
        timed = updated_node.iter
        if loop.over_batches and updated_node.asynchronous is None:
            timed = _wrap_iterable(timed)
        if timed is not updated_node.iter and not head.whitespace.value and head.comment is None:
            head = head.with_changes(whitespace=_BEFORE_MARK, comment=cst.Comment(MARK))
        changed = [*guards, statement.with_changes(body=inner)]
        return updated_node.with_changes(iter=timed, body=body.with_changes(header=head, body=changed, footer=[]))


def _is_guard(statement: cst.BaseStatement) -> bool:
    """Return True if the branch only ends the loop or the iteration, which is then not a step."""
    if not isinstance(statement, cst.If) or statement.orelse is not None:
        return False
    body = statement.body
    alone = body.body[0] if isinstance(body, cst.IndentedBlock) and len(body.body) == 1 else body
    leaves = [m.Break() | m.Continue()]
    return m.matches(alone, m.SimpleStatementLine(body=leaves)) or m.matches(alone, m.SimpleStatementSuite(body=leaves))


def _wrap_iterable(iterable: cst.BaseExpression) -> cst.BaseExpression:
    """Record the waits for batches: their iterable goes into a call. Parenthesised expressions are left alone, since no
    blank need follow them, and so are tuples without parentheses."""
    if iterable.lpar:
        return iterable
    around = get_wrapping_call(iterable)
    if around is not None:
        first, *rest = around.args
        return around.with_changes(args=[first.with_changes(value=_wrap_iterable(first.value)), *rest])
    if isinstance(iterable, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)):
        return cst.Call(func=_TIMED, args=[cst.Arg(value=iterable)])
    return iterable


def _drop_timing(iterable: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(iterable, cst.Call) and len(iterable.args) == 1 and iterable.func.deep_equals(_TIMED):
        return iterable.args[0].value
    around = get_wrapping_call(iterable)
    if around is None:
        return iterable
    first, *rest = around.args
    return around.with_changes(args=[first.with_changes(value=_drop_timing(first.value)), *rest])


@dataclass(slots=True)
class _PatchRemover(cst.CSTTransformer):
    """Removes marked lines; `lines` counts them."""

    lines: int = 0

    def leave_IndentedBlock(  # noqa: N802
        self,
        original_node: cst.IndentedBlock,  # noqa: ARG002
        updated_node: cst.IndentedBlock,
    ) -> cst.IndentedBlock:
        return self._drop_inserted(updated_node)

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For:  # noqa: N802
        body = original_node.body
        if not isinstance(body, cst.IndentedBlock) or not any(map(_get_inserted_block, body.body)):
            return updated_node
        kept = updated_node.body
        if _has_mark(body.header):
            kept = kept.with_changes(header=body.header.with_changes(whitespace=_NO_SPACE, comment=None))
        return updated_node.with_changes(iter=_drop_timing(updated_node.iter), body=kept)

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: ARG002, N802
        return self._drop_inserted(updated_node)

    def _drop_inserted(self, node: _Body) -> _Body:
        """Return the node with the remaining statements. Comments around a removed one go before the next one."""
        left: list[_Statement] = []
        carried: tuple[cst.EmptyLine, ...] = ()
        statements: Sequence[_Statement] = node.body
        statement: _Statement
        for statement in statements:
            block = _get_inserted_block(statement)
            line = isinstance(statement, cst.SimpleStatementLine) and _has_mark(statement.trailing_whitespace)
            ours = block is not None or line
            self.lines += ours
            if ours:
                carried = (*carried, *_get_leading_lines(statement))
            each: _Statement
            for each in (statement,) if not ours else () if block is None else block.body:
                left.append(each.with_changes(leading_lines=(*carried, *_get_leading_lines(each))) if carried else each)
                carried = ()
            if block is not None:
                carried = tuple(block.footer)
        return node.with_changes(body=left, footer=(*carried, *node.footer))


def _get_inserted_block(statement: _Statement) -> cst.IndentedBlock | None:
    """Return the body of a `with` that `patch` inserted; None for another statement."""
    if not (isinstance(statement, cst.With) and isinstance(statement.body, cst.IndentedBlock)):
        return None
    return statement.body if _has_mark(statement.body.header) else None


def _get_leading_lines(statement: _Statement) -> Sequence[cst.EmptyLine]:
    lines = getattr(statement, "leading_lines", ())
    assert isinstance(lines, (list, tuple))
    return lines


def _has_mark(space: cst.TrailingWhitespace) -> bool:
    return space.comment is not None and space.comment.value == MARK
