"""Read a function's body statement by statement: its instructions, and their possible successors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from frx_graph.evidence.ptx.declarations import DECLARED
from frx_graph.evidence.ptx.instruction import Opcode, parse_opcode
from frx_graph.evidence.ptx.loops import Jump

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_NAME = r"[A-Za-z_$%][\w$]*"
DECLARATION = (
    r"(?:\.(?:visible|extern|weak|common)\s*)?"
    r"\.(?:reg|sreg|global|const|shared|local|param|tex|surf|texref|samplerref|surfref|pragma|alias|branchtargets"
    rf'|calltargets|callprototype|attribute)\b[^;"]*(?:{_STRING}[^;"]*)*;'
    r"|\.loc\s+\d+\s+\d+\s+\d+"
    r"(?:\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\w+)?\s*,\s*inlined_at\s+\d+\s+\d+\s+\d+)?"
    rf"|\.file\s+\d+\s+{_STRING}(?:\s*,\s*\d+){{0,2}}"
    r"|\.section\s+[.\w]+\s*\{[^}]*\}"
    r"|@@DWARF[^\n]*"
)
_ONE = (
    # A modifier such as `.shared::cta` has two colons, and does not turn the text before it into a label.
    rf"(?P<label>{_NAME})\s*:(?!:)"
    r"|(?P<guard>@\s*!?\s*[\w%$]+\s+)?(?P<opcode>(?>[a-z]\w*(?:\s*\.[\w:]+)*))(?!\s*:)"
    # Braces hold vectors: `{%f1, %f2}`.
    r"(?P<operands>[^;{}]*(?:\{[^;{}]*\}[^;{}]*)*);"
    rf"|(?P<declaration>{DECLARATION})"
)
STATEMENTS = rf"(?:(?:{_ONE})\s*){{1,1000}}"
"""Statements that the parser gets at once; without a limit a match would remember each until all are matched."""
STATEMENT = re.compile(_ONE)


_TARGET = re.compile(r"([\w$%]+)\s*$")
_CALLED = re.compile(r"\s*(?:\([^()]*\)\s*,\s*)?([\w$%]+)")
_NAMES = re.compile(r"[A-Za-z_$%][\w$]*")
_BRANCH_TARGETS = ".branchtargets"
_NAMED = (_BRANCH_TARGETS, ".calltargets", ".callprototype")
"""Directives named by the label before them, which is not a branch target."""
_MOST_JUMPS = 1_000_000
"""Limit on jumps: each `brx.idx` goes to all names in a table, and a hostile file may use long tables often."""
_REDUCTION = "0d3BF921FB54442D19"
"""Half of pi times 2^-64: the last factor of the slow path of `sinf`, `cosf` and `tanf`. Source: what `nvcc -ptx` makes
of them."""
_ENDS = frozenset({"ret", "exit", "trap"})


@dataclass(slots=True)
class Code:
    """The code of a function.

    `declarations` are the declarations of variables and registers, as written. A place is an index of `opcodes`;
    `labels` has the last label before a place, with its line.
    """

    opcodes: list[Opcode] = field(default_factory=list)
    declarations: list[str] = field(default_factory=list)
    jumps: list[Jump] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Places of instructions that leave the function."""
    labels: dict[int, tuple[str, int]] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)
    """Called names; for a call through a register, its name."""
    branches: int = 0
    """Number of instructions that depend on a predicate."""
    reductions: int = 0
    """Double-precision multiplications that reduce the argument of `sinf` and its like."""


@dataclass(slots=True)
class _CodeScope:
    """One pair of braces.

    A label is known in its braces and in inner ones; repeated inline assembly uses the same names in separate scopes.
    `tables` are the targets of `brx.idx`; `waiting` are jumps to names that are not known yet.
    """

    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    waiting: list[_PendingJump] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _PendingJump:
    place: int
    name: str
    may_pass: bool
    by_table: bool
    """Return True for the name of a table or a label."""


def read_code(body: Iterable[Any]) -> Code:
    """Collects the code of a body from the grammar: runs of statements, as tokens with lines, and nested bodies."""
    code = Code()
    open_bodies: list[tuple[Iterator[Any], _CodeScope]] = [(iter(body), _CodeScope())]
    while open_bodies:
        items, scope = open_bodies[-1]
        for item in items:
            if isinstance(item, list):
                open_bodies.append((iter(item), _CodeScope()))
                break
            _read_run(item, item.line, scope, code)
        else:
            open_bodies.pop()
            around = open_bodies[-1][1] if open_bodies else _CodeScope()
            _close_scope(scope, around, code)
    return code


def _read_run(run: str, line: int, scope: _CodeScope, code: Code) -> None:
    opcodes, counted, label = code.opcodes, 0, ""
    before: tuple[str, int] | None = None
    for found in STATEMENT.finditer(run):
        text = found["opcode"]
        if text is not None:
            opcode = parse_opcode(text)
            name = opcode.words[0]
            guarded = found["guard"] is not None
            if name in _ENDS:
                if not guarded:
                    code.ends.append(len(opcodes))
            elif name in ("bra", "brx") and (target := _TARGET.search(found["operands"])):
                code.branches += guarded and name == "bra"
                scope.waiting.append(_PendingJump(len(opcodes), target[1], guarded, by_table=name == "brx"))
            elif name == "mul" and _REDUCTION in found["operands"]:
                code.reductions += 1
            elif name == "call" and (called := _CALLED.match(found["operands"])):
                code.calls.add(called[1])
            opcodes.append(opcode)
        elif (name := found["label"]) is not None:
            line += run.count("\n", counted, found.start())
            counted = found.start()
            label, before = name, code.labels.get(len(opcodes))
            scope.labels[name] = len(opcodes)
            code.labels[len(opcodes)] = (name, line)
        else:
            declaration = found[0]
            if declaration.startswith(_NAMED) and before is not None:
                code.labels[len(opcodes)] = before
            if declaration.startswith(_BRANCH_TARGETS):
                scope.tables[label] = _NAMES.findall(declaration.removeprefix(_BRANCH_TARGETS))
            elif declaration.startswith(DECLARED):
                code.declarations.append(declaration)


def _close_scope(scope: _CodeScope, around: _CodeScope, code: Code) -> None:
    """Resolve the jumps of a scope that has ended, or pass them to the scope `around` it."""
    for jump in scope.waiting:
        known = jump.name in (scope.tables if jump.by_table else scope.labels)
        if not known:
            around.waiting.append(jump)
            continue
        names = scope.tables[jump.name] if jump.by_table else [jump.name]
        for name in names:
            if name in scope.labels:
                code.jumps.append(Jump(jump.place, scope.labels[name], jump.may_pass))
            else:
                around.waiting.append(_PendingJump(jump.place, name, jump.may_pass, by_table=False))
        if len(code.jumps) + len(around.waiting) > _MOST_JUMPS:
            raise ValueError(f"more than {_MOST_JUMPS:,} jumps in a function")
